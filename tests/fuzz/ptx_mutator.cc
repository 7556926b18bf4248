#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"

#include "tests/fuzz/fuzz_target.h"

// Changes PTX by whole tokens and lines, so that most of what comes out still parses and reaches
// the compiler; now and then by bytes, as libFuzzer does.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed);

namespace fargpu::fuzz {
namespace {

constexpr const char* kNumbers[] = {"0",
                                    "1",
                                    "-1",
                                    "4",
                                    "31",
                                    "32",
                                    "33",
                                    "64",
                                    "255",
                                    "65536",
                                    "4294967295",
                                    "9223372036854775807",
                                    "-9223372036854775808",
                                    "18446744073709551615",
                                    "0f7FC00000",
                                    "0d7FF8000000000000",
                                    "1.5"};
constexpr const char* kModifiers[] = {
    ".b8",     ".b16",   ".b32",    ".b64",    ".b128",  ".u8",     ".u16",   ".u32",      ".u64",
    ".s8",     ".s16",   ".s32",    ".s64",    ".f16",   ".f16x2",  ".bf16",  ".bf16x2",   ".f32",
    ".f64",    ".f32x2", ".pred",   ".u16x2",  ".tf32",  ".e4m3x2", ".v2",    ".v4",       ".lo",
    ".hi",     ".wide",  ".cc",     ".sat",    ".ftz",   ".rn",     ".rz",    ".rni",      ".rzi",
    ".approx", ".full",  ".global", ".shared", ".local", ".const",  ".param", ".volatile", ".sync",
    ".all",    ".any",   ".bfly",   ".idx",    ".clamp", ".wrap",   ".noinc", ".to",       ".uni",
    ".eq",     ".lt",    ".nan",    ".and",    ".xor",   ".cas",    ".exch",  ".add",      ".inc"};
constexpr const char* kOpcodes[] = {
    "abs",      "add",    "addc",     "and",       "atom", "bar",   "barrier",   "bfe",  "bfi",
    "bfind",    "bra",    "brev",     "call",      "clz",  "cnot",  "copysign",  "cp",   "cvt",
    "cvta",     "div",    "dp2a",     "dp4a",      "ex2",  "exit",  "fence",     "fma",  "fns",
    "isspacep", "ld",     "ldu",      "lg2",       "lop3", "mad",   "mad24",     "madc", "match",
    "max",      "membar", "min",      "mov",       "mul",  "mul24", "nanosleep", "neg",  "not",
    "or",       "popc",   "prefetch", "prmt",      "rcp",  "red",   "redux",     "rem",  "ret",
    "rsqrt",    "sad",    "selp",     "set",       "setp", "shf",   "shfl",      "shl",  "shr",
    "sin",      "slct",   "sqrt",     "st",        "sub",  "subc",  "szext",     "tanh", "testp",
    "trap",     "vote",   "xor",      "activemask"};

std::vector<std::string> Tokens(absl::string_view text) {
  const auto part = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
  };
  std::vector<std::string> tokens;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    if (part(text[at]) || text[at] == '.') {
      while (end < text.size() && part(text[end])) ++end;
    }
    tokens.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return tokens;
}

class Mutator {
 public:
  explicit Mutator(unsigned int seed) : random_(seed) {}

  std::string Mutate(absl::string_view text) {
    if (Below(3) == 0) return MutateLines(text);
    std::vector<std::string> tokens = Tokens(text);
    if (tokens.empty()) return std::string(text);
    const size_t count = 1 + Below(3);
    for (size_t i = 0; i < count; ++i) MutateToken(&tokens);
    std::string out;
    for (const std::string& token : tokens) out += token;
    return out;
  }

 private:
  size_t Below(size_t limit) { return random_() % limit; }
  template <typename T, size_t N>
  std::string OneOf(const T (&list)[N]) {
    return list[Below(N)];
  }
  static bool IsWord(const std::string& token) {
    return token.size() > 1 || !absl::ascii_isspace(static_cast<unsigned char>(token[0]));
  }
  static char KindOf(const std::string& token) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(token[0]))) return '0';
    if (token[0] == '.' || token[0] == '%' || token[0] == '$') return token[0];
    return absl::ascii_isalpha(static_cast<unsigned char>(token[0])) ? 'a' : ' ';
  }

  void MutateToken(std::vector<std::string>* tokens) {
    size_t at = Below(tokens->size());
    for (int tries = 0; tries < 8 && !IsWord((*tokens)[at]); ++tries) at = Below(tokens->size());
    std::string& token = (*tokens)[at];
    switch (Below(8)) {
      case 0:
        token.clear();
        break;
      case 1:
        token += token;
        break;
      case 2:  // a token of the same kind from elsewhere
      case 3:
      case 4:
        for (int tries = 0; tries < 32; ++tries) {
          const std::string& other = (*tokens)[Below(tokens->size())];
          if (other.empty() || token.empty() || KindOf(other) != KindOf(token)) continue;
          token = other;
          break;
        }
        break;
      default:
        if (token.empty()) break;
        if (KindOf(token) == '0') {
          token = OneOf(kNumbers);
        } else if (token[0] == '.') {
          token = Below(4) == 0 ? token + OneOf(kModifiers) : OneOf(kModifiers);
        } else if (KindOf(token) == 'a') {
          token = OneOf(kOpcodes);
        } else {
          token = OneOf(kNumbers);
        }
    }
    if (token.empty()) token = " ";
  }

  std::string MutateLines(absl::string_view text) {
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size() - 1);
      lines.emplace_back(text.substr(at, end + 1 - at));
      at = end + 1;
    }
    if (lines.empty()) return std::string(text);
    const size_t from = Below(lines.size());
    const size_t to = Below(lines.size());
    switch (Below(4)) {
      case 0:
        lines[from].clear();
        break;
      case 1:
        std::swap(lines[from], lines[to]);
        break;
      case 2:
        lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(to), std::string(lines[from]));
        break;
      default:
        lines[to] = lines[from];
    }
    std::string out;
    for (const std::string& line : lines) out += line;
    return out;
  }

  std::minstd_rand random_;
};

}  // namespace
}  // namespace fargpu::fuzz

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  if (size == 0 || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string text = fargpu::fuzz::Mutator(seed).Mutate(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  const size_t kept = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), kept);
  return kept;
}
