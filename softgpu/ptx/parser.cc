#include "softgpu/ptx/parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/status_macros.h"
#include "softgpu/ptx/body_parser.h"
#include "softgpu/ptx/declaration_parser.h"

namespace fargpu::softgpu::ptx {
namespace {

class ModuleParser : protected DeclarationParser {
 public:
  ModuleParser(std::shared_ptr<const std::string> source, Bodies bodies)
      : DeclarationParser(Lexer(*source)),
        module_(std::make_unique<Module>()),
        at_once_(bodies == Bodies::kAtOnce ||
                 (bodies == Bodies::kBySize && source->size() <= kParsedAtOnce)) {
    module_->source = std::move(source);
  }

  absl::StatusOr<std::unique_ptr<Module>> Run() {
    while (token_.kind != TokenKind::kEnd) RETURN_IF_ERROR(ModuleItem());
    if (module_->version == 0) return Error("there is no .version directive");
    return std::move(module_);
  }

 private:
  absl::Status ModuleItem() {
    Linkage linkage;
    while (token_.kind == TokenKind::kDot) {
      const absl::string_view name = token_.text;
      if (name == "extern") {
        linkage.is_extern = true;
      } else if (name == "visible") {
        linkage.is_visible = true;
      } else if (name == "weak" || name == "common") {
        linkage.is_visible = linkage.is_weak = true;
      } else {
        break;
      }
      Take();
    }
    if (Accept(';')) return absl::OkStatus();
    if (token_.kind != TokenKind::kDot) return Expected("a directive");
    const absl::string_view name = token_.text;
    if (name == "entry" || name == "func") return ParseFunction(linkage);
    Space space;
    if (SpaceOfName(name, &space)) {
      Take();
      return Variables(space, linkage, &module_->variables);
    }
    Take();
    if (name == "version") return Version();
    if (name == "target") return Target();
    if (name == "address_size") {
      ASSIGN_OR_RETURN(const uint64_t size, Integer("an address size"));
      if (size != 64) return Error(absl::StrCat("address size ", size, " is not 64"));
      return absl::OkStatus();
    }
    if (name == "file" || name == "loc") return SkipLine();
    if (name == "pragma") return SkipPast(';');
    if (name == "section") {
      while (token_.kind != TokenKind::kEnd && !token_.Is('{')) Take();
      return SkipBraces();
    }
    if (name == "alias") return Alias();
    return Error(absl::StrCat("unknown directive .", name));
  }

  // .alias name, function;
  absl::Status Alias() {
    Module::Alias alias;
    alias.location = token_.location;
    ASSIGN_OR_RETURN(alias.name, Identifier("the name of a function"));
    RETURN_IF_ERROR(Expect(','));
    ASSIGN_OR_RETURN(alias.target, Identifier("the name of a function"));
    module_->aliases.push_back(alias);
    return Expect(';');
  }

  absl::Status Version() {
    double version = 0;
    if ((token_.kind != TokenKind::kDouble && token_.kind != TokenKind::kInteger) ||
        !absl::SimpleAtod(token_.text, &version) || version < 1 || version > 99) {
      return Expected("a PTX version like 9.0");
    }
    module_->version = static_cast<int>(version * 10 + 0.5);
    Take();
    return absl::OkStatus();
  }

  absl::Status Target() {
    do {
      ASSIGN_OR_RETURN(absl::string_view target, Identifier("a target like sm_75"));
      if (absl::ConsumePrefix(&target, "sm_")) {
        const size_t digits = target.find_first_not_of("0123456789");
        if (!absl::SimpleAtoi(target.substr(0, digits), &module_->target)) {
          return Error("malformed target");
        }
      }
    } while (Accept(','));
    return absl::OkStatus();
  }

  absl::Status ParseFunction(Linkage linkage) {
    module_->functions.emplace_back();
    Function& f = module_->functions.back();
    f.is_entry = token_.text == "entry";
    f.is_extern = linkage.is_extern;
    f.is_visible = linkage.is_visible;
    f.is_weak = linkage.is_weak;
    Take();
    if (token_.Is('(')) RETURN_IF_ERROR(Parameters(&f, &f.returns));
    f.location = token_.location;
    ASSIGN_OR_RETURN(f.name, Identifier("the name of a function"));
    if (token_.Is('(')) RETURN_IF_ERROR(Parameters(&f, &f.params));
    f.variables = f.params;
    f.variables.insert(f.variables.end(), f.returns.begin(), f.returns.end());
    RETURN_IF_ERROR(FunctionDirectives(&f));
    if (Accept(';')) return absl::OkStatus();
    if (!token_.Is('{')) return Expected("'{' or ';'");
    f.has_body = true;
    f.body_offset = static_cast<size_t>(token_.text.data() - module_->source->data());
    f.body_location = token_.location;
    const Lexer start(*module_->source, f.body_offset, f.body_location);
    BodyParser scanner(start, &f);
    const absl::Status scanned = scanner.Scan();
    if (at_once_ || !scanned.ok()) {
      f.is_parsed = true;
      BodyParser parser(start, &f);
      RETURN_IF_ERROR(parser.Run());
      RETURN_IF_ERROR(scanned);
    }
    lexer_ = scanner.lexer();
    token_ = scanner.token();
    return absl::OkStatus();
  }

  absl::Status Parameters(Function* f, std::vector<Variable>* out) {
    RETURN_IF_ERROR(Expect('('));
    while (!token_.Is(')')) {
      if (token_.kind != TokenKind::kDot) return Expected("a parameter");
      Variable variable;
      const bool is_register = token_.text == "reg";
      if (!is_register && token_.text != "param") return Expected(".param or .reg");
      Take();
      RETURN_IF_ERROR(VariableType(Space::kParam, {}, &variable));
      RETURN_IF_ERROR(Declarator(&variable));
      if (is_register) {
        variable.is_register = true;
        variable.index = static_cast<int>(f->registers.size());
        f->registers.push_back({variable.name, variable.type});
      }
      out->push_back(std::move(variable));
      if (!Accept(',')) break;
    }
    return Expect(')');
  }

  absl::Status FunctionDirectives(Function* f) {
    while (token_.kind == TokenKind::kDot) {
      const absl::string_view name = token_.text;
      Take();
      if (name == "pragma") {
        RETURN_IF_ERROR(SkipPast(';'));
        continue;
      }
      if (name == "noreturn") continue;
      const bool threads = name == "maxntid" || name == "reqntid";
      uint32_t ignored[3] = {};
      uint32_t* const numbers = threads                       ? f->max_threads
                                : name == "reqnctapercluster" ? f->cluster
                                : name == "maxclusterrank"    ? &f->max_cluster_blocks
                                                              : ignored;
      const int most = name == "maxclusterrank" ? 1 : 3;
      if (name == "explicitcluster") f->explicit_cluster = true;
      if (name == "blocksareclusters") f->blocks_are_clusters = true;
      if (!threads && name != "minnctapersm" && name != "maxnctapersm" && name != "maxnreg" &&
          name != "maxclusterrank" && name != "reqnctapercluster" && name != "explicitcluster" &&
          name != "blocksareclusters" && name != "abi_preserve" && name != "abi_preserve_control") {
        return Error(absl::StrCat("unknown directive .", name, " of a function"));
      }
      for (int i = 0; token_.kind == TokenKind::kInteger; ++i) {
        if (i >= most) return Error(absl::StrCat("too many numbers for .", name));
        numbers[i] = static_cast<uint32_t>(std::min<uint64_t>(token_.value, UINT32_MAX));
        Take();
        if (!Accept(',')) break;
      }
      if (threads || numbers == f->cluster) {
        for (int i = 0; i < 3; ++i) numbers[i] = std::max(numbers[i], 1u);
      }
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Module> module_;
  const bool at_once_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string source, Bodies bodies) {
  return ModuleParser(std::make_shared<const std::string>(std::move(source)), bodies).Run();
}

absl::Status ParseBody(const Module& module, Function* function) {
  if (function->is_parsed) return absl::OkStatus();
  function->is_parsed = true;
  BodyParser parser(Lexer(*module.source, function->body_offset, function->body_location),
                    function);
  return parser.Run();
}

}  // namespace fargpu::softgpu::ptx
