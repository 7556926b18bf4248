#include "softgpu/ptx/parser.h"

#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu::softgpu::ptx {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHeader[] = ".version 8.7\n.target sm_75, debug\n.address_size 64\n";

std::unique_ptr<Module> Parse(const std::string& body) {
  auto module = ParseModule(kHeader + body);
  EXPECT_OK(module);
  return module.ok() ? *std::move(module) : nullptr;
}

std::string ParseError(const std::string& text) {
  return std::string(ParseModule(text).status().message());
}

TEST(ParserTest, ReadsHeaderAndKernelSignature) {
  const auto module = Parse(R"(
.visible .entry k(.param .u64 p0, .param .align 8 .b8 s[24], .param .u32 .ptr .global .align 4 n)
.maxntid 256, 1, 1
.minnctapersm 2
{
  .reg .b32 %r<3>;
  mov.u32 %r1, %tid.x;
  ret;
})");
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->version, 87);
  EXPECT_EQ(module->target, 75);
  ASSERT_EQ(module->functions.size(), 1u);
  const Function& k = module->functions[0];
  EXPECT_TRUE(k.is_entry);
  ASSERT_EQ(k.params.size(), 3u);
  EXPECT_EQ(k.params[1].size, 24u);
  EXPECT_EQ(k.params[1].alignment, 8u);
  EXPECT_EQ(k.max_threads[0], 256u);
  ASSERT_EQ(k.body.size(), 2u);
  EXPECT_EQ(k.body[0].operands[1].name, "%tid");
  EXPECT_EQ(k.body[0].operands[1].component, 'x');
}

TEST(ParserTest, ReadsOperandForms) {
  const auto module = Parse(R"(
.global .align 4 .b8 table[8];
.func f() {
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .reg .f32 %f<3>;
  .reg .b64 %rd1, %rd2;
  @!%p1 ld.global.v2.u32 {%r1, _}, [%rd1+-8];
  mov.f32 %f1, 0f3F800000;
  mov.u64 %rd1, table+4;
  setp.eq.and.s32 %p1|%p2, %r1, -5, !%p2;
  st.shared.b32 [table+12], 0x1F;
})");
  ASSERT_NE(module, nullptr);
  const Function& f = module->functions[0];
  const Instruction& load = f.body[0];
  EXPECT_GE(load.guard, 0);
  EXPECT_TRUE(load.guard_negated);
  EXPECT_EQ(load.operands[0].kind, Operand::Kind::kVector);
  EXPECT_EQ(load.operands[0].parts[1].kind, Operand::Kind::kSink);
  EXPECT_EQ(load.operands[1].offset, -8);
  EXPECT_EQ(f.body[1].operands[1].kind, Operand::Kind::kSingle);
  EXPECT_EQ(f.body[1].operands[1].bits, 0x3f800000u);
  EXPECT_EQ(f.body[2].operands[1].kind, Operand::Kind::kSymbol);
  EXPECT_EQ(f.body[2].operands[1].offset, 4);
  EXPECT_EQ(f.body[3].operands[0].kind, Operand::Kind::kPair);
  EXPECT_EQ(static_cast<int64_t>(f.body[3].operands[2].bits), -5);
  EXPECT_TRUE(f.body[3].operands[3].negated);
  EXPECT_EQ(f.body[4].operands[0].offset, 12);
  EXPECT_EQ(f.body[4].operands[1].bits, 0x1fu);
}

TEST(ParserTest, InnerScopesShadowRegisters) {
  const auto module = Parse(R"(
.func f() {
  .reg .b32 %r<4>;
  { .reg .b64 %r2; mov.b64 %r2, 1; }
  mov.b32 %r2, 1;
})");
  ASSERT_NE(module, nullptr);
  const Function& f = module->functions[0];
  EXPECT_EQ(f.registers[f.body[0].operands[0].index].type.bits, 64);
  EXPECT_EQ(f.registers[f.body[1].operands[0].index].type.bits, 32);
}

TEST(ParserTest, ReadsInitialisers) {
  const auto module = Parse(R"(
.visible .global .align 4 .u32 a = 7;
.const .align 2 .b16 b[] = {1, -1, 0x10};
.global .align 8 .u64 c[3] = {generic(a), a+4, 0};
.global .f64 d = 1.5;
.extern .shared .align 16 .b8 dyn[];
)");
  ASSERT_NE(module, nullptr);
  ASSERT_EQ(module->variables.size(), 5u);
  EXPECT_EQ(module->variables[0].initializer.bytes, std::vector<char>({7, 0, 0, 0}));
  EXPECT_EQ(module->variables[1].size, 6u);
  EXPECT_EQ(module->variables[1].initializer.bytes, std::vector<char>({1, 0, -1, -1, 16, 0}));
  const auto& addresses = module->variables[2].initializer.addresses;
  ASSERT_EQ(addresses.size(), 2u);
  EXPECT_TRUE(addresses[0].generic);
  EXPECT_EQ(addresses[1].symbol, "a");
  EXPECT_EQ(addresses[1].addend, 4);
  EXPECT_EQ(addresses[1].position, 8u);
  EXPECT_TRUE(module->variables[4].unsized);
}

TEST(ParserTest, KeepsModifiersInAnyOrder) {
  const auto module =
      Parse(".func f() { .reg .b32 %r<3>; .reg .pred %p<2>; vote.ballot.sync.b32 %r1, %p1, -1; }");
  ASSERT_NE(module, nullptr);
  const Instruction& vote = module->functions[0].body[0];
  EXPECT_TRUE(vote.Has("sync"));
  EXPECT_TRUE(vote.Has("ballot"));
  EXPECT_EQ(vote.type().bits, 32);
}

TEST(ParserTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(ParseError(".version 8.0\n.entry k() {\n  .reg .b64 %r<2>;\n"
                         "  st.u32 [%r1+9223372036854775807], 0;\n}\n"),
              StartsWith("line 4, column 15: offset 9223372036854775807 is beyond the limit"));
  EXPECT_THAT(
      ParseError(".version 8.0\n.entry k() {\n  .reg .b32 %r<2>;\n  mov.u32 %q1, %r1;\n}\n"),
      StartsWith("line 4, column 11: register %q1 is not declared"));
  EXPECT_THAT(ParseError(".version 8.0\n.target sm_75\n.address_size 32\n"),
              StartsWith("line 4, column 1: address size 32"));
  EXPECT_THAT(ParseError(".version 8.0\n.entry k() {\n  mov.u32 %tid 5;\n}\n"),
              StartsWith("line 3, column 16: expected ';'"));
  EXPECT_THAT(ParseError(".version 8.0\n.entry k() {\n  bra nowhere;\n}\n"),
              HasSubstr("label nowhere is used but not defined"));
  EXPECT_THAT(ParseError(".version 8.0\n.entry k() {\nL:\nL:\n}\n"),
              StartsWith("line 4, column 1: label L is defined twice"));
  EXPECT_THAT(ParseError(".version 8.0\n.entry k() {\n  @%p1 ret;\n}\n"),
              StartsWith("line 3, column 4: %p1 is not a predicate"));
  EXPECT_THAT(ParseError(".version 8.0\n.global .b8 x[4] = {1,2,3,4,5};"),
              HasSubstr("has 5 bytes, more than the 4"));
  EXPECT_THAT(ParseError(".version 8.0\n.global .u32 x = 99999999999999999999999;"),
              HasSubstr("does not fit in 64 bits"));
  EXPECT_THAT(ParseError("hello"), HasSubstr("expected a directive, not 'hello'"));
  EXPECT_THAT(ParseError(""), HasSubstr("no .version"));
  EXPECT_THAT(ParseError(".version 8.0\n.entry k() {"), HasSubstr("not the end of the text"));
}

TEST(ParserTest, FillsUpShortRowsOfAggregates) {
  const auto module = Parse(R"(
.global .u8 a[2][3] = {{1, 2}, {3}};
.global .u16 b[2][2][2] = {{{1}, {2, 3}}, {{4}}};
.global .u8 c[][2] = {{1}, {2}, {3}};
.global .u8 d[2][2] = {1, 2, 3, 4};
)");
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->variables[0].initializer.bytes, std::vector<char>({1, 2, 0, 3, 0, 0}));
  EXPECT_EQ(module->variables[1].initializer.bytes,
            std::vector<char>({1, 0, 0, 0, 2, 0, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(module->variables[2].initializer.bytes, std::vector<char>({1, 0, 2, 0, 3, 0}));
  EXPECT_EQ(module->variables[2].size, 6u);
  EXPECT_EQ(module->variables[3].initializer.bytes, std::vector<char>({1, 2, 3, 4}));
}

TEST(ParserTest, ReadsVectorRegisters) {
  const auto module = Parse(R"(
.func f() {
  .reg .v4 .f32 %v, %w;
  .reg .b64 %rd;
  ld.global.v4.f32 %v, [%rd];
  mov.f32 %w.x, %v.w;
  add.f32 %v.g, %v.a, %w.x;
})");
  ASSERT_NE(module, nullptr);
  const Function& f = module->functions[0];
  ASSERT_EQ(f.registers.size(), 9u);
  ASSERT_EQ(f.body[0].operands[0].parts.size(), 4u);
  EXPECT_EQ(f.body[0].operands[0].parts[3].index, 3);
  EXPECT_EQ(f.body[1].operands[0].index, 4);
  EXPECT_EQ(f.body[1].operands[1].index, 3);
  EXPECT_EQ(f.body[2].operands[0].index, 1);
  EXPECT_THAT(ParseError(".version 8.0\n.func f() { .reg .v2 .b32 %v;\nmov.b32 %v.z, 1; }"),
              StartsWith("line 3, column 11: expected an element of the vector %v, not '.z'"));
}

TEST(ParserTest, ReadsPartsOfRegistersInVideoInstructionsOnly) {
  const auto module =
      Parse(".func f() { .reg .b32 %r<4>; vmad.s32.s32.s32 %r0, -%r1.b2, %r2.h1, %r3; }");
  ASSERT_NE(module, nullptr);
  const Instruction& vmad = module->functions[0].body[0];
  EXPECT_TRUE(vmad.operands[1].negated);
  EXPECT_EQ(vmad.operands[1].selector, "b2");
  EXPECT_EQ(vmad.operands[2].selector, "h1");
  EXPECT_THAT(ParseError(".version 8.0\n.func f() { .reg .b32 %r<4>;\nadd.s32 %r0, -%r1, 1; }"),
              StartsWith("line 3, column 15: expected an operand"));
  EXPECT_THAT(ParseError(".version 8.0\n.func f() { .reg .b32 %r<4>;\nadd.s32 %r0, %r1.b0, 1; }"),
              StartsWith("line 3, column 17: expected ';'"));
}

constexpr char kTwoFunctions[] = R"(
.shared .align 4 .b8 module_shared[64];
.global .u32 counter;
.func (.param .b32 r) callee(.param .b32 x) {
  .reg .b32 %v<5>;
  .reg .f64 %d;
  ld.param.b32 %v1, [x]; // } ; {
  st.param.b32 [r], %v1;
  ret;
}
.visible .entry k(.param .u64 p)
{
  .reg .pred %p1;
  .reg .b64 %rd<3>;
  .local .align 8 .b8 depot[24];
  .shared .align 4 .f32 tile[16];
  .param .b32 argument;
  mov.u64 %rd1, depot;
$L: mov.u64 %rd2, module_shared;
  @!%p1 bra $L;
  {
    .local .b32 inner;
    st.param.b32 [argument], 5; /* "}" */
    call.uni (argument), callee, (argument);
    atom.global.add.u32 %rd1, [counter], 1;
  }
  ret;
}
.func after() { ret; }
)";

TEST(ParserTest, BodiesMayBeParsedWhenTheyAreUsed) {
  auto late = ParseModule(kHeader + std::string(kTwoFunctions), Bodies::kWhenUsed);
  auto now = ParseModule(kHeader + std::string(kTwoFunctions), Bodies::kAtOnce);
  ASSERT_OK(late);
  ASSERT_OK(now);
  ASSERT_EQ((*late)->functions.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    Function& a = (*late)->functions[i];
    const Function& b = (*now)->functions[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_FALSE(a.is_parsed);
    EXPECT_TRUE(a.body.empty());
    EXPECT_TRUE(b.is_parsed);
    ASSERT_OK(ParseBody(**late, &a));
    ASSERT_OK(ParseBody(**late, &a));  // once only
    ASSERT_EQ(a.body.size(), b.body.size());
    for (size_t k = 0; k < a.body.size(); ++k) {
      EXPECT_EQ(a.body[k].Name(), b.body[k].Name());
      EXPECT_EQ(a.body[k].location.line, b.body[k].location.line);
      EXPECT_EQ(a.body[k].location.column, b.body[k].location.column);
    }
    EXPECT_EQ(a.registers.size(), b.registers.size());
    EXPECT_EQ(a.variables.size(), b.variables.size());
  }
  EXPECT_EQ((*late)->functions[1].body.back().opcode, "ret");
}

TEST(ParserTest, SummarisesBodiesWithoutParsingThem) {
  const auto module = ParseModule(kHeader + std::string(kTwoFunctions), Bodies::kWhenUsed);
  ASSERT_OK(module);
  const FunctionSummary& callee = (*module)->functions[0].summary;
  EXPECT_EQ(callee.register_words, 5u + 2u);
  EXPECT_TRUE(callee.calls.empty());
  EXPECT_TRUE(callee.names.empty());
  const FunctionSummary& k = (*module)->functions[1].summary;
  EXPECT_EQ(k.register_words, 1u + 3u * 2);
  ASSERT_EQ(k.local.size(), 2u);
  EXPECT_EQ(k.local[0].size, 24u);
  ASSERT_EQ(k.shared.size(), 1u);
  EXPECT_EQ(k.shared[0].size, 64u);
  EXPECT_THAT(k.calls, testing::UnorderedElementsAre("callee", "argument"));
  EXPECT_THAT(k.names, testing::UnorderedElementsAre("module_shared", "counter"));
}

TEST(ParserTest, MistakesInLateBodiesAreFoundWhenTheyAreUsed) {
  const std::string text =
      ".version 8.0\n.entry k() {\n  mov.u32 %tid 5;\n}\n.entry good() { ret; }\n";
  auto module = ParseModule(text, Bodies::kWhenUsed);
  ASSERT_OK(module);
  EXPECT_THAT(std::string(ParseBody(**module, &(*module)->functions[0]).message()),
              StartsWith("line 3, column 16: expected ';'"));
  EXPECT_OK(ParseBody(**module, &(*module)->functions[1]));
  // Where the end of a body cannot be told, at once.
  EXPECT_THAT(std::string(ParseModule(".version 8.0\n.entry k() {\n  ret\n}\n.entry l() { ret; }",
                                      Bodies::kWhenUsed)
                              .status()
                              .message()),
              StartsWith("line 4, column 1: expected an operand, not '}'"));
  // Long texts are not parsed at once.
  std::string filler = text;
  filler.append(kParsedAtOnce, ' ');
  EXPECT_OK(ParseModule(filler));
  EXPECT_FALSE(ParseModule(text).ok());
}

TEST(ParserTest, ReadsHundredsOfThousandsOfInstructionsWithoutKeepingThem) {
  std::string text = kHeader;
  constexpr int kKernels = 1000, kInstructions = 860;
  for (int k = 0; k < kKernels; ++k) {
    text += ".visible .entry k" + std::to_string(k) + "(.param .u64 p) {\n.reg .f32 %f<900>;\n";
    for (int i = 0; i < kInstructions; ++i) {
      text += "\tfma.rn.f32 \t%f" + std::to_string(i % 900) + ", %f1, 0f3F800000, %f2;\n";
    }
    text += "ret;\n}\n";
  }
  const auto module = ParseModule(text);
  ASSERT_OK(module);
  ASSERT_EQ((*module)->functions.size(), static_cast<size_t>(kKernels));
  for (Function& f : (*module)->functions) {
    EXPECT_FALSE(f.is_parsed);
    EXPECT_TRUE(f.body.empty());
    EXPECT_TRUE(f.registers.empty());
    EXPECT_EQ(f.summary.register_words, 900u);
  }
  Function& last = (*module)->functions.back();
  ASSERT_OK(ParseBody(**module, &last));
  EXPECT_EQ(last.body.size(), kInstructions + 1u);
  EXPECT_EQ(last.body.front().location.line, 5 + (kKernels - 1) * (kInstructions + 4) + 1);
}

TEST(ParserTest, EveryTruncationIsAnErrorOrAModule) {
  const std::string text =
      std::string(kHeader) + R"(.global .align 8 .u64 c[2] = {generic(c), 0f3F800000};
.visible .entry k(.param .u64 p) { .reg .b32 %r<3>; /* x */ $L: @%r1 bra $L; call (%r1), f, (p, 1); } // end)";
  for (size_t n = 0; n < text.size(); ++n) {
    for (const Bodies bodies : {Bodies::kAtOnce, Bodies::kWhenUsed}) {
      ParseModule(text.substr(0, n), bodies).status().IgnoreError();  // must not crash or hang
    }
  }
}

TEST(ParserTest, DeepNestingIsRefused) {
  EXPECT_THAT(ParseError(std::string(kHeader) + ".func f() " + std::string(5000, '{')),
              HasSubstr("nested too deeply"));
}

}  // namespace
}  // namespace fargpu::softgpu::ptx
