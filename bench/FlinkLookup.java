import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.catalog.GenericInMemoryCatalog;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.lookup.PartialCachingLookupProvider;
import org.apache.flink.table.connector.source.lookup.cache.DefaultLookupCache;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.Factory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.LookupFunction;
import org.apache.flink.types.Row;

/**
 * Flink's lookup join with its LRU cache, for `bench.peers`, which compiles and runs it with the jars of Flink 2.
 *
 * <pre>java -cp ... FlinkLookup LEFT KEYS_OF_TABLE URL SLOTS</pre>
 *
 * LEFT is a file with the key of each left row as 8 bytes, the highest first. URL is PostgreSQL's, by JDBC; where it is
 * empty, rows are computed. The job runs three times in this process: to warm up, with one row, and with all rows again.
 * Prints the seconds of the third run, less those of the second, since each job starts the local runner anew; the
 * requests of the third run; and the sums of its rows.
 */
public class FlinkLookup {
    static final AtomicLong REQUESTS = new AtomicLong();
    static final ConfigOption<String> URL = ConfigOptions.key("url").stringType().defaultValue("");
    static final ConfigOption<Long> ROWS = ConfigOptions.key("rows").longType().noDefaultValue();
    static final int MOST_CACHED = 1_000_000;
    static long[] keys;

    /** Looks up one key at a time, as Flink's JDBC connector does. */
    public static class PeopleByKey extends LookupFunction {
        private final String url;
        private final long rows;
        private transient Connection connection;
        private transient PreparedStatement query;

        PeopleByKey(String url, long rows) {
            this.url = url;
            this.rows = rows;
        }

        @Override
        public void open(FunctionContext context) throws SQLException {
            if (!url.isEmpty()) {
                connection = DriverManager.getConnection(url);
                query = connection.prepareStatement("SELECT id, name, age FROM t WHERE id = ?");
            }
        }

        @Override
        public void close() throws SQLException {
            if (connection != null) {
                connection.close();
            }
        }

        @Override
        public Collection<RowData> lookup(RowData key) throws IOException {
            REQUESTS.incrementAndGet();
            long id = key.getLong(0);
            if (url.isEmpty()) {
                return id < rows ? List.of(row(id, "name " + id % 1000, (int) (id % 80))) : List.of();
            }
            try {
                query.setLong(1, id);
                try (ResultSet found = query.executeQuery()) {
                    return found.next() ? List.of(row(id, found.getString(2), found.getInt(3))) : List.of();
                }
            } catch (SQLException error) {
                throw new IOException(error);
            }
        }

        private static RowData row(long id, String name, int age) {
            return GenericRowData.of(id, StringData.fromString(name), age);
        }
    }

    /** The table of people, which a query can only look up. */
    public record People(String url, long rows) implements LookupTableSource {
        @Override
        public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
            DefaultLookupCache cache = DefaultLookupCache.newBuilder().maximumSize(MOST_CACHED).build();
            return PartialCachingLookupProvider.of(new PeopleByKey(url, rows), cache);
        }

        @Override
        public DynamicTableSource copy() {
            return this;
        }

        @Override
        public String asSummaryString() {
            return "people";
        }
    }

    /** Makes the source of a table whose connector is `people`. */
    public static class PeopleFactory implements DynamicTableSourceFactory {
        @Override
        public String factoryIdentifier() {
            return "people";
        }

        @Override
        public Set<ConfigOption<?>> requiredOptions() {
            return Set.of(ROWS);
        }

        @Override
        public Set<ConfigOption<?>> optionalOptions() {
            return Set.of(URL);
        }

        @Override
        public DynamicTableSource createDynamicTableSource(Context context) {
            FactoryUtil.TableFactoryHelper helper = FactoryUtil.createTableFactoryHelper(this, context);
            helper.validate();
            return new People(helper.getOptions().get(URL), helper.getOptions().get(ROWS));
        }
    }

    /** A catalog whose tables are made by `PeopleFactory`, which so needs no entry in a jar. */
    public static class Catalog extends GenericInMemoryCatalog {
        Catalog() {
            super("bench");
        }

        @Override
        public Optional<Factory> getFactory() {
            return Optional.of(new PeopleFactory());
        }
    }

    public static void main(String[] arguments) throws Exception {
        keys = read(arguments[0]);
        run(arguments, keys.length);
        long began = System.nanoTime();
        run(arguments, 1);
        REQUESTS.set(0);
        long started = System.nanoTime();
        Row sums = run(arguments, keys.length);
        System.out.println("seconds " + (System.nanoTime() - started - (started - began)) / 1e9);
        System.out.println("requests " + REQUESTS.get());
        System.out.println("sums [" + sums.getField(0) + ", " + sums.getField(1) + ", " + sums.getField(2) + "]");
    }

    static long[] read(String path) throws IOException {
        try (FileInputStream file = new FileInputStream(path);
                DataInputStream data = new DataInputStream(new BufferedInputStream(file, 1 << 20))) {
            long[] found = new long[(int) (file.getChannel().size() / Long.BYTES)];
            for (int at = 0; at < found.length; at++) {
                found[at] = data.readLong();
            }
            return found;
        }
    }

    static Row run(String[] arguments, int rows) throws Exception {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(arguments[3]));
        environment.setRuntimeMode(RuntimeExecutionMode.BATCH);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.registerCatalog("bench", new Catalog());
        tables.useCatalog("bench");
        tables.executeSql(
                "CREATE TABLE t (id BIGINT, name STRING, age INT) WITH ('connector' = 'people', 'rows' = '"
                        + arguments[1] + "', 'url' = '" + arguments[2] + "')");
        tables.createTemporaryView(
                "l",
                environment.fromSequence(0, rows - 1)
                        .map(number -> Tuple2.of(keys[(int) (long) number], number))
                        .returns(Types.TUPLE(Types.LONG, Types.LONG)),
                Schema.newBuilder()
                        .column("f0", "BIGINT")
                        .column("f1", "BIGINT")
                        .columnByExpression("now", "PROCTIME()")
                        .build());
        return tables.executeSql(
                "SELECT COUNT(*), SUM(CAST(MOD(id, 1009) * (COALESCE(age, -1) + 2) AS BIGINT)), "
                        + "SUM(CAST(MOD(v, 1009) * CHAR_LENGTH(COALESCE(name, '')) AS BIGINT)) FROM (SELECT l.f0 AS id, l.f1 AS v, "
                        + "t.name, t.age FROM l LEFT JOIN t FOR SYSTEM_TIME AS OF l.now AS t ON l.f0 = t.id)")
                .collect().next();
    }
}
