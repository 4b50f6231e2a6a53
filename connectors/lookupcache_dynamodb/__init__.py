"""The `dynamodb` connector: items by their primary key from Amazon DynamoDB."""

from lookupcache_dynamodb.connector import DynamoDbConnector

__all__ = ["DynamoDbConnector"]
