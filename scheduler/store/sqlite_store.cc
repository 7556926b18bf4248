#include "scheduler/store/sqlite_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/fd.h"
#include "common/status_macros.h"
#include <sqlite3.h>

namespace fargpu::scheduler {
namespace {

// "FarG": what `file` and we see in the header of our databases.
constexpr int kApplicationId = 0x46617247;
constexpr int kSchemaVersion = 1;

// The columns are what is looked up or checked in SQL; all else is in the serialised messages, so
// that a new field needs no new schema.
constexpr char kSchema[] = R"sql(
  CREATE TABLE store(id TEXT NOT NULL);
  CREATE TABLE leases(
    id BLOB PRIMARY KEY,
    secret BLOB NOT NULL,
    tenant TEXT NOT NULL,
    request_id TEXT,
    fingerprint BLOB NOT NULL,
    end_cause INTEGER NOT NULL,
    create_time_ms INTEGER NOT NULL,
    lease BLOB NOT NULL
  ) WITHOUT ROWID;
  CREATE UNIQUE INDEX leases_by_request ON leases(tenant, request_id) WHERE request_id IS NOT NULL;
  CREATE TABLE nodes(name TEXT PRIMARY KEY, hello BLOB NOT NULL, last_heard_ms INTEGER NOT NULL)
    WITHOUT ROWID;
  CREATE TABLE events(sequence INTEGER PRIMARY KEY, event BLOB NOT NULL);
)sql";

// One prepared statement: bind in order, step, read columns. Errors are sticky until Done().
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) : database_(database) {
    code_ = sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // SQLITE_TRANSIENT copies: simpler than proving lifetimes, and the values are small.
  Statement& Blob(absl::string_view value) {
    return Check(code_ != SQLITE_OK ? code_
                                    : sqlite3_bind_blob64(statement_, ++bound_, value.data(),
                                                          value.size(), SQLITE_TRANSIENT));
  }
  Statement& Text(absl::string_view value) {
    return Check(code_ != SQLITE_OK
                     ? code_
                     : sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(),
                                           SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  Statement& Null() {
    return Check(code_ != SQLITE_OK ? code_ : sqlite3_bind_null(statement_, ++bound_));
  }
  Statement& Int(int64_t value) {
    return Check(code_ != SQLITE_OK ? code_ : sqlite3_bind_int64(statement_, ++bound_, value));
  }

  // True when there is a row to read; false at the end and after an error.
  bool Step() {
    if (code_ != SQLITE_OK && code_ != SQLITE_ROW) return false;
    code_ = sqlite3_step(statement_);
    return code_ == SQLITE_ROW;
  }
  std::string Bytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return size > 0 ? std::string(static_cast<const char*>(data), size) : std::string();
  }
  int64_t Integer(int column) { return sqlite3_column_int64(statement_, column); }

  absl::Status Done() {
    while (Step()) {
    }
    if (code_ == SQLITE_DONE) return absl::OkStatus();
    return absl::UnavailableError(sqlite3_errmsg(database_));
  }
  void Rewind() {
    sqlite3_reset(statement_);
    bound_ = 0;
    code_ = SQLITE_OK;
  }

 private:
  Statement& Check(int code) {
    code_ = code;
    return *this;
  }

  sqlite3* const database_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
  int bound_ = 0;
};

absl::string_view AsBytes(const LeaseId& id) {
  return {reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()};
}
absl::string_view AsBytes(const LeaseSecret& secret) {
  return {reinterpret_cast<const char*>(secret.bytes.data()), secret.bytes.size()};
}

template <typename Array>
bool CopyExactly(const std::string& from, Array& to) {
  if (from.size() != to.size()) return false;
  std::memcpy(to.data(), from.data(), to.size());
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(const std::string& path) {
  // SQLite gives its -wal and -shm files the mode of the main file, so making that file ourselves
  // settles all three.
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  file.reset();

  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &database,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  auto store = std::unique_ptr<SqliteStore>(new SqliteStore(path, database));
  if (code != SQLITE_OK) return store->ErrorHere("cannot open");
  sqlite3_busy_timeout(database, /*ms=*/2000);
  RETURN_IF_ERROR(store->Execute("PRAGMA journal_mode=WAL"));
  // FULL: a commit is on the disk when it returns, so that no lease is granted twice after a power
  // cut.
  RETURN_IF_ERROR(store->Execute("PRAGMA synchronous=FULL"));
  RETURN_IF_ERROR(store->PrepareSchema());
  return store;
}

SqliteStore::~SqliteStore() { sqlite3_close(database_); }

absl::Status SqliteStore::ErrorHere(absl::string_view what) const {
  return absl::UnavailableError(
      absl::StrCat("store ", path_, ": ", what, ": ", sqlite3_errmsg(database_)));
}

absl::Status SqliteStore::Execute(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) {
    return ErrorHere(absl::string_view(sql).substr(0, 40));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::PrepareSchema() {
  int64_t application_id = 0;
  int64_t version = 0;
  int64_t tables = 0;
  {
    Statement query(database_,
                    "SELECT (SELECT application_id FROM pragma_application_id), "
                    "(SELECT user_version FROM pragma_user_version), "
                    "(SELECT count(*) FROM sqlite_schema)");
    if (!query.Step()) return ErrorHere("cannot read");
    application_id = query.Integer(0);
    version = query.Integer(1);
    tables = query.Integer(2);
  }
  if (tables == 0) {
    std::array<uint8_t, 8> id;
    FillRandom(absl::MakeSpan(id));
    RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    RETURN_IF_ERROR(Execute(kSchema));
    RETURN_IF_ERROR(
        Statement(database_, "INSERT INTO store VALUES(?)").Text(BytesToHex(id)).Done());
    RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA application_id=", kApplicationId).c_str()));
    RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA user_version=", kSchemaVersion).c_str()));
    return Execute("COMMIT");
  }
  if (application_id != kApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path_, ": this SQLite file was not made by FarGPU"));
  }
  if (version != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("store ", path_, ": schema version is ",
                                                      version, ", this program knows version ",
                                                      kSchemaVersion));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoreContents> SqliteStore::Load() {
  StoreContents contents;
  Statement store(database_, "SELECT id FROM store");
  if (!store.Step()) return ErrorHere("cannot read the store's id");
  contents.store_id = store.Bytes(0);

  Statement leases(database_,
                   "SELECT id, secret, request_id, fingerprint, end_cause, lease FROM leases "
                   "ORDER BY create_time_ms, id");
  while (leases.Step()) {
    LeaseRecord record;
    const int64_t cause = leases.Integer(4);
    if (!CopyExactly(leases.Bytes(0), record.id.bytes) ||
        !CopyExactly(leases.Bytes(1), record.secret.bytes) || cause < 0 ||
        cause > static_cast<int64_t>(EndCause::kNode) ||
        !record.lease.ParseFromString(leases.Bytes(5))) {
      return absl::DataLossError(absl::StrCat("store ", path_, ": a row of leases is damaged"));
    }
    record.request_id = leases.Bytes(2);
    record.fingerprint = leases.Bytes(3);
    record.end_cause = static_cast<EndCause>(cause);
    contents.leases.push_back(std::move(record));
  }
  RETURN_IF_ERROR(leases.Done());

  Statement nodes(database_, "SELECT hello, last_heard_ms FROM nodes ORDER BY name");
  while (nodes.Step()) {
    NodeRecord record;
    if (!record.hello.ParseFromString(nodes.Bytes(0))) {
      return absl::DataLossError(absl::StrCat("store ", path_, ": a row of nodes is damaged"));
    }
    record.last_heard_ms = nodes.Integer(1);
    contents.nodes.push_back(std::move(record));
  }
  RETURN_IF_ERROR(nodes.Done());

  Statement events(database_, "SELECT sequence, event FROM events ORDER BY sequence");
  while (events.Step()) {
    EventRecord record;
    record.sequence = static_cast<uint64_t>(events.Integer(0));
    if (!record.event.ParseFromString(events.Bytes(1))) {
      return absl::DataLossError(absl::StrCat("store ", path_, ": a row of events is damaged"));
    }
    contents.events.push_back(std::move(record));
  }
  RETURN_IF_ERROR(events.Done());
  return contents;
}

absl::Status SqliteStore::Commit(const StoreChange& change) {
  RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  absl::Status status = CommitInTransaction(change);
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok()) {
    // A failed COMMIT leaves the transaction open; nothing of it may stay.
    if (!sqlite3_get_autocommit(database_)) {
      sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
    }
    return absl::UnavailableError(absl::StrCat("store ", path_, ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::Status SqliteStore::CommitInTransaction(const StoreChange& change) {
  if (!change.put_leases.empty()) {
    Statement put(database_,
                  "INSERT INTO leases VALUES(?,?,?,?,?,?,?,?) ON CONFLICT(id) DO UPDATE SET "
                  "secret=excluded.secret, end_cause=excluded.end_cause, lease=excluded.lease");
    for (const LeaseRecord& record : change.put_leases) {
      put.Rewind();
      put.Blob(AsBytes(record.id)).Blob(AsBytes(record.secret)).Text(record.lease.tenant());
      if (record.request_id.empty()) {
        put.Null();
      } else {
        put.Text(record.request_id);
      }
      put.Blob(record.fingerprint)
          .Int(static_cast<int64_t>(record.end_cause))
          .Int(record.lease.create_time_ms())
          .Blob(record.lease.SerializeAsString());
      RETURN_IF_ERROR(put.Done());
    }
  }
  for (const LeaseId& id : change.delete_leases) {
    RETURN_IF_ERROR(Statement(database_, "DELETE FROM leases WHERE id=?").Blob(AsBytes(id)).Done());
  }
  for (const NodeRecord& record : change.put_nodes) {
    RETURN_IF_ERROR(Statement(database_, "INSERT OR REPLACE INTO nodes VALUES(?,?,?)")
                        .Text(record.hello.node_name())
                        .Blob(record.hello.SerializeAsString())
                        .Int(record.last_heard_ms)
                        .Done());
  }
  for (const EventRecord& record : change.append_events) {
    RETURN_IF_ERROR(Statement(database_, "INSERT INTO events VALUES(?,?)")
                        .Int(static_cast<int64_t>(record.sequence))
                        .Blob(record.event.SerializeAsString())
                        .Done());
  }
  if (change.delete_events_before != 0) {
    RETURN_IF_ERROR(Statement(database_, "DELETE FROM events WHERE sequence<?")
                        .Int(static_cast<int64_t>(change.delete_events_before))
                        .Done());
  }
  return absl::OkStatus();
}

}  // namespace fargpu::scheduler
