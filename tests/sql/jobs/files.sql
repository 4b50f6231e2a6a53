SET 'execution.runtime-mode' = 'batch';
SET 'table.local-time-zone' = 'UTC';

CREATE TABLE visits (
  user_id INT,
  page STRING
) WITH ('connector' = 'filesystem', 'path' = '{folder}/visits', 'format' = 'parquet');

CREATE TABLE users (
  id INT NOT NULL,
  name STRING,
  level STRING
) WITH (
  'connector' = 'jdbc', 'url' = 'jdbc:sqlite:{folder}/shop.db', 'table-name' = 'users',
  'lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '100'
);

INSERT INTO visits VALUES (1, 'home'), (2, 'shop'), (1, 'shop'), (7, 'home');

CREATE TEMPORARY VIEW gold AS SELECT id, UPPER(name) AS name FROM users WHERE level = 'gold';

CREATE TABLE report (page STRING, name STRING, n BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{folder}/report', 'format' = 'parquet');

EXECUTE STATEMENT SET BEGIN
  INSERT INTO report
  SELECT v.page, g.name, COUNT(*) AS n
  FROM visits AS v
  JOIN gold FOR SYSTEM_TIME AS OF PROCTIME() AS g ON v.user_id = g.id
  GROUP BY v.page, g.name;
END;

SELECT * FROM report ORDER BY page, name;
