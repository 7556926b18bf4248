#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "tests/fuzz/fuzz_target.h"

// NAME_replay PATH...: runs the target's seeds and every file given, folders with all their files.
// NAME_replay --write-seeds FOLDER: writes the seeds there, for libFuzzer.
// A path that does not exist is skipped: most targets have no regressions.
namespace fargpu::fuzz {
namespace {

void AddFiles(const std::string& path, std::vector<std::string>* files) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return;
  if (!S_ISDIR(info.st_mode)) {
    files->push_back(path);
    return;
  }
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return;
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  closedir(folder);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) AddFiles(path + "/" + name, files);
}

void Run(const std::string& name, const std::string& bytes) {
  // The last line of a failed test then names the input.
  std::printf("%s (%zu bytes)\n", name.c_str(), bytes.size());
  std::fflush(stdout);
  // A copy of exactly this size, so that AddressSanitizer sees a read beyond it.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

int WriteSeeds(const std::string& folder) {
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
    std::perror(folder.c_str());
    return 1;
  }
  for (const Seed& seed : Seeds()) {
    std::ofstream file(folder + "/" + seed.name, std::ios::binary);
    file.write(seed.bytes.data(), static_cast<std::streamsize>(seed.bytes.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "%s/%s cannot be written\n", folder.c_str(), seed.name.c_str());
      return 1;
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write-seeds") return WriteSeeds(argv[2]);
  int count = 0;
  for (const Seed& seed : Seeds()) {
    Run("seed " + seed.name, seed.bytes);
    ++count;
  }
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) AddFiles(argv[i], &files);
  for (const std::string& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s cannot be read\n", name.c_str());
      return 1;
    }
    Run(name, std::string(std::istreambuf_iterator<char>(file), {}));
    ++count;
  }
  std::printf("%d inputs\n", count);
  return count > 0 ? 0 : 1;
}

}  // namespace
}  // namespace fargpu::fuzz

int main(int argc, char** argv) { return fargpu::fuzz::Main(argc, argv); }
