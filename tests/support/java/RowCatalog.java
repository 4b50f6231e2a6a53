package lookupcache.tests;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of tables in memory that MERGE, UPDATE and DELETE can change: each writes all rows of a table again.
 *
 * Raw types and no lambdas: it is compiled by Janino, which Spark contains, since a runtime need not have javac.
 */
public class RowCatalog implements TableCatalog {
    private static final Map TABLES = new HashMap();
    private String catalog;

    public void initialize(String name, CaseInsensitiveStringMap options) {
        catalog = name;
    }

    public String name() {
        return catalog;
    }

    public Identifier[] listTables(String[] namespace) {
        return new Identifier[0];
    }

    public Table loadTable(Identifier ident) throws NoSuchTableException {
        Table found = (Table) TABLES.get(ident.name());
        if (found == null) {
            throw new NoSuchTableException(ident);
        }
        return found;
    }

    public Table createTable(Identifier ident, Column[] columns, Transform[] parts, Map properties) {
        RowTable made = new RowTable(ident.name(), columns);
        TABLES.put(ident.name(), made);
        return made;
    }

    public Table alterTable(Identifier ident, TableChange[] changes) {
        throw new UnsupportedOperationException();
    }

    public boolean dropTable(Identifier ident) {
        return TABLES.remove(ident.name()) != null;
    }

    public void renameTable(Identifier from, Identifier to) {
        throw new UnsupportedOperationException();
    }

    public static class RowTable implements SupportsRead, SupportsWrite, SupportsRowLevelOperations {
        final String table;
        final Column[] columns;
        List rows = new ArrayList();

        RowTable(String table, Column[] columns) {
            this.table = table;
            this.columns = columns;
        }

        public String name() {
            return table;
        }

        public Column[] columns() {
            return columns;
        }

        public Set capabilities() {
            Set found = new HashSet();
            found.add(TableCapability.BATCH_READ);
            found.add(TableCapability.BATCH_WRITE);
            return found;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new AllRows(this);
        }

        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new RowWrite(this, false);
        }

        public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
            return new Replacement(this, info.command());
        }
    }

    public static class AllRows implements ScanBuilder, LocalScan {
        final RowTable table;

        AllRows(RowTable table) {
            this.table = table;
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            StructType schema = new StructType();
            for (int n = 0; n < table.columns.length; n++) {
                schema = schema.add(table.columns[n].name(), table.columns[n].dataType());
            }
            return schema;
        }

        public InternalRow[] rows() {
            return (InternalRow[]) table.rows.toArray(new InternalRow[0]);
        }
    }

    public static class Replacement implements RowLevelOperationBuilder, RowLevelOperation {
        final RowTable table;
        final RowLevelOperation.Command command;

        Replacement(RowTable table, RowLevelOperation.Command command) {
            this.table = table;
            this.command = command;
        }

        public RowLevelOperation build() {
            return this;
        }

        public RowLevelOperation.Command command() {
            return command;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new AllRows(table);
        }

        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new RowWrite(table, true);
        }
    }

    public static class RowWrite implements WriteBuilder, Write, BatchWrite {
        final RowTable table;
        final boolean replaces;

        RowWrite(RowTable table, boolean replaces) {
            this.table = table;
            this.replaces = replaces;
        }

        public Write build() {
            return this;
        }

        public BatchWrite toBatch() {
            return this;
        }

        public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
            return new Writers();
        }

        public void commit(WriterCommitMessage[] messages) {
            List found = replaces ? new ArrayList() : new ArrayList(table.rows);
            for (int n = 0; n < messages.length; n++) {
                found.addAll(((Written) messages[n]).rows);
            }
            table.rows = found;
        }

        public void abort(WriterCommitMessage[] messages) {}
    }

    public static class Writers implements DataWriterFactory {
        public DataWriter createWriter(int partition, long task) {
            return new Written();
        }
    }

    public static class Written implements DataWriter, WriterCommitMessage, Serializable {
        final ArrayList rows = new ArrayList();

        public void write(Object row) {
            rows.add(((InternalRow) row).copy());
        }

        public WriterCommitMessage commit() {
            return this;
        }

        public void abort() {}

        public void close() {}
    }
}
