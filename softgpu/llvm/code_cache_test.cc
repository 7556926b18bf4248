#include "softgpu/llvm/code_cache.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace fargpu::softgpu {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPlenty = uint64_t{1} << 30;

CodeCache::Key KeyOf(absl::string_view name) { return CodeCacheHash().Add(name).Finish(); }

class CodeCacheTest : public testing::Test {
 protected:
  CodeCacheTest() {
    std::string name = testing::TempDir() + "/code_cache.XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    folder_ = absl::StrCat(name, "/deep/cache");
  }
  ~CodeCacheTest() override { fs::remove_all(root_); }

  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      files.push_back(entry.path());
    }
    return files;
  }
  fs::path OnlyFile() const {
    const std::vector<fs::path> files = Files();
    EXPECT_EQ(files.size(), 1u);
    return files.at(0);
  }
  uint64_t FolderBytes() const {
    uint64_t bytes = 0;
    for (const fs::path& file : Files()) bytes += fs::file_size(file);
    return bytes;
  }
  static std::string Read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  static void Write(const fs::path& file, absl::string_view bytes) {
    std::ofstream(file, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  fs::path root_;
  std::string folder_;
};

TEST_F(CodeCacheTest, FindsWhatWasStoredAndNothingElse) {
  const CodeCache cache(folder_, kPlenty);
  EXPECT_EQ(cache.Find(KeyOf("a")), std::nullopt);
  const std::string contents("machine\0code", 12);
  cache.Store(KeyOf("a"), contents);
  cache.Store(KeyOf("b"), "");
  EXPECT_EQ(cache.Find(KeyOf("a")), contents);
  EXPECT_EQ(cache.Find(KeyOf("b")), "");
  EXPECT_EQ(cache.Find(KeyOf("c")), std::nullopt);
  EXPECT_EQ(CodeCache(folder_, kPlenty).Find(KeyOf("a")), contents) << "in another process";
  struct stat status = {};
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(CodeCacheTest, KeysDifferWithEveryPartAndItsBorders) {
  EXPECT_NE(CodeCacheHash().Add("ab").Add("c").Finish(),
            CodeCacheHash().Add("a").Add("bc").Finish());
  EXPECT_NE(CodeCacheHash().Add(1).Finish(), CodeCacheHash().Add(2).Finish());
  EXPECT_EQ(CodeCacheHash().Add("x").Add(7).Finish(), CodeCacheHash().Add("x").Add(7).Finish());
}

TEST_F(CodeCacheTest, EveryTruncationIsNoEntry) {
  const CodeCache cache(folder_, kPlenty);
  const CodeCache::Key key = KeyOf("a");
  cache.Store(key, "contents of some length");
  const fs::path file = OnlyFile();
  const std::string whole = Read(file);
  for (size_t length = 0; length < whole.size(); ++length) {
    Write(file, whole.substr(0, length));
    EXPECT_EQ(cache.Find(key), std::nullopt) << length;
    EXPECT_FALSE(fs::exists(file)) << "damaged files are removed";
  }
  Write(file, whole + "x");
  EXPECT_EQ(cache.Find(key), std::nullopt) << "longer than it says";
  Write(file, whole);
  EXPECT_TRUE(cache.Find(key).has_value());
}

TEST_F(CodeCacheTest, EveryFlippedByteIsNoEntry) {
  const CodeCache cache(folder_, kPlenty);
  const CodeCache::Key key = KeyOf("a");
  cache.Store(key, "contents");
  const fs::path file = OnlyFile();
  const std::string whole = Read(file);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    Write(file, damaged);
    EXPECT_EQ(cache.Find(key), std::nullopt) << at;
  }
}

TEST_F(CodeCacheTest, AnotherEntrysFileIsNoEntry) {
  const CodeCache cache(folder_, kPlenty);
  cache.Store(KeyOf("a"), "a's code");
  const fs::path a = OnlyFile();
  const std::string bytes = Read(a);
  fs::remove(a);
  cache.Store(KeyOf("b"), "b's code");
  Write(OnlyFile(), bytes);
  EXPECT_EQ(cache.Find(KeyOf("b")), std::nullopt);
}

TEST_F(CodeCacheTest, WhatOthersMayWriteIsNoEntry) {
  const CodeCache cache(folder_, kPlenty);
  cache.Store(KeyOf("a"), "code");
  fs::permissions(OnlyFile(), fs::perms::group_write | fs::perms::others_write,
                  fs::perm_options::add);
  EXPECT_EQ(cache.Find(KeyOf("a")), std::nullopt);
}

TEST_F(CodeCacheTest, WritersAndReadersInSeveralProcessesSeeWholeEntries) {
  const CodeCache cache(folder_, kPlenty);
  const CodeCache::Key key = KeyOf("a");
  cache.Store(key, std::string(100, 'a'));
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      // Each writes other contents of another length under the same key; whoever reads must see
      // one of them whole.
      bool good = true;
      for (int round = 0; round < 200; ++round) {
        cache.Store(key, std::string(100 + 5000 * child, static_cast<char>('a' + child)));
        const std::optional<std::string> found = cache.Find(key);
        good = good && found.has_value() &&
               *found == std::string(100 + 5000 * (found->at(0) - 'a'), found->at(0));
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(Files().size(), 1u) << "no temporary file stays";
}

TEST_F(CodeCacheTest, StaysUnderItsLimitAndDropsWhatIsUnusedForLongest) {
  constexpr uint64_t kLimit = 20000;
  const CodeCache cache(folder_, kLimit);
  const std::string contents(1000, 'x');
  for (int k = 0; k < 100; ++k) {
    cache.Store(KeyOf(absl::StrCat("entry ", k)), contents);
    EXPECT_LE(FolderBytes(), kLimit);
    // Times of files may be no finer than the clock's tick: space them out by hand.
    const auto now = fs::file_time_type::clock::now();
    for (const fs::path& file : Files()) {
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::seconds(10));
    }
    if (k > 0) {
      ASSERT_TRUE(cache.Find(KeyOf("entry 0")).has_value()) << "used all the time, at round " << k;
    }
    EXPECT_LE(now, fs::file_time_type::clock::now());
  }
  EXPECT_TRUE(cache.Find(KeyOf("entry 99")).has_value());
  EXPECT_FALSE(cache.Find(KeyOf("entry 50")).has_value());
  cache.Store(KeyOf("huge"), std::string(kLimit, 'x'));
  EXPECT_FALSE(cache.Find(KeyOf("huge")).has_value()) << "larger than the whole cache";
  EXPECT_TRUE(cache.Find(KeyOf("entry 99")).has_value()) << "and nothing is evicted for it";
}

TEST_F(CodeCacheTest, WhatDeadWritersLeftIsRemoved) {
  const CodeCache cache(folder_, kPlenty);
  cache.Store(KeyOf("a"), "code");
  const fs::path old = fs::path(folder_) / ".tmp-old";
  const fs::path fresh = fs::path(folder_) / ".tmp-new";
  Write(old, "half");
  Write(fresh, "half");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  cache.Store(KeyOf("b"), "code");
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh)) << "its writer may be alive";
}

TEST_F(CodeCacheTest, CanBeTurnedOff) {
  const CodeCache cache(folder_, 0);
  EXPECT_FALSE(cache.enabled());
  cache.Store(KeyOf("a"), "code");
  EXPECT_EQ(cache.Find(KeyOf("a")), std::nullopt);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(CodeCacheTest, AFolderThatCannotBeMadeCostsNothing) {
  Write(root_ / "file", "in the way");
  const CodeCache cache((root_ / "file" / "cache").string(), kPlenty);
  cache.Store(KeyOf("a"), "code");
  EXPECT_EQ(cache.Find(KeyOf("a")), std::nullopt);
}

TEST_F(CodeCacheTest, TheEnvironmentSaysWhere) {
  unsetenv("FARGPU_CACHE_BYTES");
  setenv("FARGPU_CACHE_DIR", "/somewhere", 1);
  EXPECT_EQ(CodeCache::FromEnvironment().folder(), "/somewhere/softgpu");
  unsetenv("FARGPU_CACHE_DIR");
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(CodeCache::FromEnvironment().folder(), "/xdg/fargpu/softgpu");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/my-home", 1);
  EXPECT_EQ(CodeCache::FromEnvironment().folder(), "/my-home/.cache/fargpu/softgpu");
  unsetenv("HOME");
  EXPECT_FALSE(CodeCache::FromEnvironment().enabled());
  setenv("HOME", "/my-home", 1);
  setenv("FARGPU_CACHE_BYTES", "0", 1);
  EXPECT_FALSE(CodeCache::FromEnvironment().enabled());
  setenv("FARGPU_CACHE_BYTES", "many", 1);
  EXPECT_FALSE(CodeCache::FromEnvironment().enabled());
  unsetenv("FARGPU_CACHE_BYTES");
}

TEST(CompilerBuildIdTest, IsThere) { EXPECT_EQ(CompilerBuildId().size(), 20u); }

}  // namespace
}  // namespace fargpu::softgpu
