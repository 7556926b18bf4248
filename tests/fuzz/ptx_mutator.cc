#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

#include "tests/conformance/ptx/probe.h"
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
// Modifiers and opcodes that real programs do not use, or hardly ever.
constexpr const char* kModifiers[] = {".b128", ".f32x2", ".u16x2", ".s8",  ".relu",  ".xorsign",
                                      ".abs",  ".NaN",   ".rs",    ".rna", ".noinc", ".to",
                                      ".nan",  ".xor",   ".inc",   ".po",  ".shr7",  ".clamp",
                                      ".wrap", ".v8",    ".sat"};
constexpr const char* kOpcodes[] = {"fns",       "isspacep", "ldu",   "mad24", "mul24", "sad",
                                    "slct",      "szext",    "testp", "vmad",  "vset",  "vadd2",
                                    "vavrg4",    "cnot",     "red",   "lop3",  "elect", "mapa",
                                    "movmatrix", "sured",    "tld4",  "txq"};

// The words of all known instruction forms, modifiers with their dot.
struct Vocabulary {
  std::vector<std::string> opcodes{std::begin(kOpcodes), std::end(kOpcodes)};
  std::vector<std::string> modifiers{std::begin(kModifiers), std::end(kModifiers)};

  Vocabulary() {
    std::set<std::string> seen;
    for (const conformance::KnownForm& form : conformance::KnownForms()) {
      const std::vector<std::string> words = absl::StrSplit(form.name, '.');
      if (seen.insert(words[0]).second) opcodes.push_back(words[0]);
      for (size_t k = 1; k < words.size(); ++k) {
        std::string modifier = "." + words[k];
        if (seen.insert(modifier).second) modifiers.push_back(std::move(modifier));
      }
    }
  }
};

const Vocabulary& Words() {
  static const Vocabulary* const words = new Vocabulary;
  return *words;
}

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
  template <typename List>
  std::string OneOf(const List& list) {
    return list[Below(std::size(list))];
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
          token = Below(4) == 0 ? token + OneOf(Words().modifiers) : OneOf(Words().modifiers);
        } else if (KindOf(token) == 'a') {
          token = OneOf(Words().opcodes);
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
