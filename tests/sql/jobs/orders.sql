-- Orders with the customer and the country of each: a job of two sinks.
SET 'execution.runtime-mode' = 'streaming';
SET 'parallelism.default' = '2'; SET 'table.exec.state.ttl' = '1 h';
SET 'execution.checkpointing.dir' = '{folder}/checkpoints';

USE CATALOG default_catalog;
USE default_catalog.default_database;

DROP TABLE IF EXISTS orders;
CREATE TABLE orders (
  order_id BIGINT,
  customer_id BIGINT,
  total DECIMAL(10, 2),
  ts TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL, -- when Kafka got it
  proc_time AS PROCTIME(),
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (
  'connector' = 'kafka',
  'topic' = 'orders; all of them',
  'properties.bootstrap.servers' = 'kafka:9092',
  'format' = 'json'
);

/* The dimension table; its lookups are cached. */
CREATE TEMPORARY TABLE dim_customers (
  id BIGINT,
  name STRING,
  country VARCHAR(2),
  PRIMARY KEY (id) NOT ENFORCED
) WITH (
  'connector' = 'jdbc',
  'url' = 'jdbc:sqlite:{folder}/shop.db?busy_timeout=3000',
  'table-name' = 'customers',
  'driver' = 'org.sqlite.JDBC',
  'scan.fetch-size' = '100',
  'lookup.cache.max-rows' = '5000',
  'lookup.cache.ttl' = '10min',
  'lookup.max-retries' = '3'
);

CREATE VIEW known_customers AS
SELECT id, UPPER(country) AS country, name FROM dim_customers WHERE name IS NOT NULL;

CREATE VIEW enriched AS
SELECT /*+ LOOKUP('table'='c', 'retry-predicate'='lookup_miss', 'retry-strategy'='fixed_delay', 'fixed-delay'='10ms','max-attempts'='1') */
  o.order_id, o.total, c.name, c.country
FROM default_catalog.default_database.orders AS o
LEFT JOIN `default_catalog`.`default_database`.known_customers FOR SYSTEM_TIME AS OF o.proc_time AS c
  ON o.customer_id = c.id;

CREATE TABLE sink_at (order_id BIGINT, name STRING) WITH (
  'connector' = 'jdbc', 'url' = 'jdbc:postgresql://db/shop', 'table-name' = 'at'
);
CREATE TABLE sink_all (order_id BIGINT, name STRING) WITH ('connector' = 'kafka', 'topic' = 'all');
CREATE TABLE sink_others (order_id BIGINT, name STRING) WITH ('connector' = 'print');

INSERT INTO sink_all SELECT order_id, name FROM enriched;

BEGIN STATEMENT SET;
INSERT INTO sink_at SELECT order_id, name FROM enriched WHERE country = 'AT';
INSERT INTO default_database.sink_others SELECT order_id, CASE WHEN name IS NULL THEN 'none; nobody' ELSE name END FROM enriched WHERE country <> 'AT' OR country IS NULL;
END;
