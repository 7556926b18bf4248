// battery names FILE: asks cuGetProcAddress for every public name of cuda.h, and for those in FILE,
// and prints "name CUresult status". battery SITUATION [FUNCTION...]: calls every entry point of
// the driver in every case and prints one line "function case CUresult" each. What it prints on the
// software device and through FarGPU must be the same. A case that crashes or hangs ends only its
// function, and says so.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "calls.h"
#include "objects.h"

namespace fargpu::conformance {
namespace {

constexpr unsigned kSecondsOfAFunction = 60;

constexpr std::pair<const char*, Situation> kSituations[] = {
    {"normal", Situation::kNormal},        {"before_init", Situation::kBeforeInit},
    {"no_context", Situation::kNoContext}, {"destroyed_context", Situation::kDestroyedContext},
    {"capture", Situation::kCapture},      {"sticky", Situation::kSticky},
};

void RunCase(const Row& row, Situation situation, const std::string& name) {
  World world(situation);
  const size_t equals = name.find('=');
  int varied = -1;
  for (size_t k = 0; equals != std::string::npos && k < row.arguments.size(); ++k) {
    if (name.substr(0, equals) == row.arguments[k]) varied = static_cast<int>(k);
  }
  Arguments arguments(&world, varied, equals == std::string::npos ? "" : name.substr(equals + 1));
  world.Begin(row.function);
  const CUresult result = row.call(arguments);
  std::printf("%s %s %d\n", row.function, name.c_str(), static_cast<int>(result));
  // An error that comes late is one line more.
  if (situation == Situation::kNormal) {
    const CUresult late = CALL(cuCtxSynchronize)();
    if (late != CUDA_SUCCESS) {
      std::printf("%s %s late %d\n", row.function, name.c_str(), static_cast<int>(late));
    }
  }
  world.End();
}

void RunRow(const Row& row, Situation situation) {
  for (const char* name : row.cases) {
    RunCase(row, situation, name);
    // Other situations are about the call as such.
    if (situation != Situation::kNormal) break;
  }
}

bool Chosen(const Row& row, int count, char** names) {
  if (count == 0) return true;
  for (int k = 0; k < count; ++k) {
    if (std::string(names[k]) == row.function) return true;
  }
  return false;
}

// Runs the rows from *next on in a process of their own; *next says where it is.
[[noreturn]] void RunRows(Situation situation, int count, char** names, std::atomic<size_t>* next) {
  if (situation != Situation::kBeforeInit) {
    const CUresult ready = CALL(cuInit)(0);
    if (ready != CUDA_SUCCESS) std::printf("cuInit %d\n", static_cast<int>(ready));
  }
  for (; *next < Rows().size(); ++*next) {
    const Row& row = Rows()[*next];
    // It would end the situation.
    if (situation == Situation::kBeforeInit && std::string(row.function) == "cuInit") continue;
    if (!Chosen(row, count, names)) continue;
    alarm(kSecondsOfAFunction);
    RunRow(row, situation);
    std::fflush(stdout);
  }
  alarm(0);
  std::exit(0);
}

void AskFor(const std::string& name) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  // A version that is later than all of them.
  const CUresult result = CALL(cuGetProcAddress_v2)(name.c_str(), &function, 99000,
                                                    CU_GET_PROC_ADDRESS_DEFAULT, &status);
  std::printf("%s %d %d%s\n", name.c_str(), static_cast<int>(result), static_cast<int>(status),
              (result == CUDA_SUCCESS) == (function != nullptr) ? "" : " with a wrong pointer");
}

int AskForNames(const char* path) {
  std::set<std::string> names;
  for (const Row& row : Rows()) {
    const std::string symbol = row.function;
    const size_t version = symbol.rfind("_v");
    names.insert(symbol.substr(0, version));
  }
  std::ifstream file(path);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path);
    return 2;
  }
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') names.insert(line);
  }
  for (const std::string& name : names) AskFor(name);
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "names") return AskForNames(argv[2]);
  const Situation* situation = nullptr;
  for (const auto& [name, value] : kSituations) {
    if (argc > 1 && std::string(argv[1]) == name) situation = &value;
  }
  if (situation == nullptr) {
    std::fprintf(stderr, "usage: battery SITUATION [FUNCTION...]\n");
    return 2;
  }
  void* const shared = mmap(nullptr, sizeof(std::atomic<size_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  auto* const next = new (shared) std::atomic<size_t>(0);
  while (*next < Rows().size()) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return 2;
    if (child == 0) RunRows(*situation, argc - 2, argv + 2, next);
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 2;
    if (*next >= Rows().size()) break;
    std::printf("%s ended the process: signal %d, status %d\n", Rows()[*next].function,
                WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                WIFEXITED(status) ? WEXITSTATUS(status) : 0);
    ++*next;
  }
  return 0;
}

}  // namespace
}  // namespace fargpu::conformance

int main(int argc, char** argv) { return fargpu::conformance::Main(argc, argv); }
