"""What runs on the Spark driver: the join, its physical forms, its report, a table read in full, the doctor."""
