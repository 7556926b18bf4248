#pragma once

#include <memory>
#include <string>

#include "scheduler/store/store.h"

struct sqlite3;

namespace fargpu::scheduler {

// A Store in one SQLite file in WAL mode.
class SqliteStore : public Store {
 public:
  // Opens or makes `path`; the file is readable by its owner only, since it holds lease secrets.
  // kFailedPrecondition: a newer version of FarGPU made it, or it is not ours. kUnavailable:
  // another process uses it, or the file cannot be opened.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(const std::string& path);
  ~SqliteStore() override;

  absl::StatusOr<StoreContents> Load() override;
  absl::Status Commit(const StoreChange& change) override;

 private:
  SqliteStore(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}

  absl::Status PrepareSchema();
  absl::Status Execute(const char* sql);
  absl::Status ErrorHere(absl::string_view what) const;
  absl::Status CommitInTransaction(const StoreChange& change);

  const std::string path_;
  sqlite3* const database_;
};

}  // namespace fargpu::scheduler
