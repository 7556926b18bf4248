#include "softgpu/llvm/cut_long_blocks.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Verifier.h"

namespace fargpu::softgpu {
namespace {

// A loop whose body adds `additions` times.
struct Loop {
  explicit Loop(int additions) : module("loop", context) {
    llvm::IRBuilder<> builder(context);
    llvm::Type* i32 = builder.getInt32Ty();
    function = llvm::Function::Create(llvm::FunctionType::get(i32, {i32}, false),
                                      llvm::Function::ExternalLinkage, "f", module);
    auto* entry = llvm::BasicBlock::Create(context, "entry", function);
    auto* body = llvm::BasicBlock::Create(context, "body", function);
    auto* end = llvm::BasicBlock::Create(context, "end", function);
    builder.SetInsertPoint(entry);
    builder.CreateAlloca(i32);
    builder.CreateBr(body);
    builder.SetInsertPoint(body);
    llvm::PHINode* sum = builder.CreatePHI(i32, 2);
    llvm::Value* value = sum;
    for (int k = 0; k < additions; ++k) value = builder.CreateAdd(value, function->getArg(0));
    sum->addIncoming(function->getArg(0), entry);
    sum->addIncoming(value, body);
    builder.CreateCondBr(builder.CreateICmpSLT(value, builder.getInt32(0)), body, end);
    builder.SetInsertPoint(end);
    builder.CreateRet(value);
  }
  size_t Longest() const {
    size_t longest = 0;
    for (const llvm::BasicBlock& block : *function) longest = std::max(longest, block.size());
    return longest;
  }
  llvm::LLVMContext context;
  llvm::Module module;
  llvm::Function* function = nullptr;
};

TEST(CutLongBlocksTest, LeavesNoLongBlockAndTheCodeWhole) {
  Loop loop(5000);
  const size_t before = loop.function->getInstructionCount();
  CutLongBlocks(&loop.module);
  EXPECT_LT(loop.Longest(), 500u);
  EXPECT_FALSE(llvm::verifyModule(loop.module, &llvm::errs()));
  // Each cut adds a branch.
  EXPECT_EQ(loop.function->getInstructionCount(), before + loop.function->size() - 3);
}

TEST(CutLongBlocksTest, LeavesShortBlocksAlone) {
  Loop loop(20);
  CutLongBlocks(&loop.module);
  EXPECT_EQ(loop.function->size(), 3u);
}

}  // namespace
}  // namespace fargpu::softgpu
