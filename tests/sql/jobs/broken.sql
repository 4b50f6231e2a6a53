SET 'pipeline.name' = 'broken';
CREATE CATALOG hive WITH ('type' = 'hive');
CREATE TABLE clicks (id BIGINT) WITH ('connector' = 'kafka', 'topic' = 'clicks');
CREATE TABLE dims (id BIGINT, name STRING) WITH ('connector' = 'jdbc', 'url' = 'jdbc:sqlite:{folder}/shop.db', 'table-name' = 'users');

INSERT INTO dims SELECT 1, 'a';
CREATE TABLE kept AS SELECT 1 AS id;
SELECT * FROM kept MATCH_RECOGNIZE (PARTITION BY id);
SELEC 1;
