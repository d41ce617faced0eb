//===- FormKernels.cpp - weights in the forms in which they travel --------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The same operations of f32 as on processors (runtime/src/cpu/Forms.cpp), so that no bit differs.
//
//===----------------------------------------------------------------------===//

#include "HelperKernels.h"
#include "HelperText.h"

#include "meshwright/runtime/include/Forms.h"
#include "meshwright/runtime/include/Types.h"

#include <algorithm>

namespace meshwright::rt::gpu {

/// More registers, for all kernels here.
static const char kRegisters[] = ".reg .b64 %y<4>;\n.reg .b32 %e<12>;\n.reg .f32 %g<8>;\n";

//===----------------------------------------------------------------------===//
// Small floats
//===----------------------------------------------------------------------===//

/// Replaces the words IN and OUT.
static std::string with(std::string text, const std::string &in, const std::string &out) {
  for (auto [word, by] : {std::pair<std::string, std::string>{"IN", in}, {"OUT", out}})
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size())
      text.replace(at, word.size(), by);
  return text;
}

/// The number of a code of f8E4M3FN: its bits as those of an f32 are 2^-120 times as large.
static std::string fromE4M3(const std::string &code, const std::string &number) {
  return with("and.b32 %e10, IN, 127;\nshl.b32 %e10, %e10, 20;\nmov.b32 OUT, %e10;\n"
              "mul.rn.f32 OUT, OUT, 0f7B800000;\nmov.b32 %e10, OUT;\nand.b32 %e11, IN, 128;\n"
              "shl.b32 %e11, %e11, 24;\nor.b32 %e10, %e10, %e11;\nmov.b32 OUT, %e10;\n",
              code, number);
}

/// The number of a code of f4E2M1FN.
static std::string fromE2M1(const std::string &code, const std::string &number) {
  return with("and.b32 %e10, IN, 7;\nshl.b32 %e10, %e10, 22;\nmov.b32 OUT, %e10;\n"
              "mul.rn.f32 OUT, OUT, 0f7E800000;\nmov.b32 %e10, OUT;\nand.b32 %e11, IN, 8;\n"
              "shl.b32 %e11, %e11, 28;\nor.b32 %e10, %e10, %e11;\nmov.b32 OUT, %e10;\n",
              code, number);
}

/// 2^(exponent - 127).
static std::string getPower(const std::string &exponent, const std::string &power) {
  return with("shl.b32 %e10, IN, 23;\nsetp.eq.u32 %c3, IN, 0;\n"
              "selp.b32 %e10, 4194304, %e10, %c3;\nmov.b32 OUT, %e10;\n",
              exponent, power);
}

/// The code of f8E4M3FN nearest to a number of magnitude below 464.
static std::string toE4M3(const std::string &number, const std::string &code) {
  return with("mov.b32 %e6, IN;\nshr.u32 %e7, %e6, 24;\nand.b32 %e7, %e7, 128;\n"
              "and.b32 %e6, %e6, 2147483647;\n"
              // Below 2^-6: the last bits of a sum with 2^14.
              "mov.b32 %g7, %e6;\nadd.rn.f32 %g7, %g7, 0f46800000;\nmov.b32 %e8, %g7;\n"
              "sub.u32 %e8, %e8, 1182793728;\n"
              // Else three bits of the mantissa, and another bias.
              "shr.u32 %e9, %e6, 20;\nand.b32 %e9, %e9, 1;\nadd.u32 %e9, %e9, %e6;\n"
              "add.u32 %e9, %e9, 524287;\nshr.u32 %e9, %e9, 20;\nsub.u32 %e9, %e9, 960;\n"
              "setp.lt.u32 %c3, %e6, 1015021568;\nselp.b32 %e8, %e8, %e9, %c3;\n"
              "or.b32 OUT, %e8, %e7;\n",
              number, code);
}

/// The code of f4E2M1FN nearest to a number.
static std::string toE2M1(const std::string &number, const std::string &code) {
  std::string text = "mov.b32 %e6, IN;\nshr.u32 %e7, %e6, 28;\nand.b32 %e7, %e7, 8;\n"
                     "abs.f32 %g7, IN;\n";
  // Between the codes i and i + 1; a tie goes to the even one.
  const char *middles[] = {"0f3E800000", "0f3F400000", "0f3FA00000", "0f3FE00000",
                           "0f40200000", "0f40600000", "0f40A00000"};
  for (size_t i = 0; i < 7; ++i)
    text += std::string("setp.") + (i % 2 ? "ge" : "gt") + ".f32 %c3, %g7, " + middles[i] +
            ";\nselp.b32 %e8, 1, 0, %c3;\nadd.u32 %e7, %e7, %e8;\n";
  return with(text + "mov.b32 OUT, %e7;\n", number, code);
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

static std::string loadByte(const std::string &address, const std::string &to) {
  return "ld.global.b8 %h0, [" + address + "];\nand.b16 %h0, %h0, 255;\ncvt.u32.u16 " + to +
         ", %h0;\n";
}

static std::string storeByte(const std::string &from, const std::string &address) {
  return "cvt.u16.u32 %h0, " + from + ";\nst.global.b8 [" + address + "], %h0;\n";
}

/// The parameters that describe a form, from number 3 on: columns, rows and columns of a block, bytes of
/// a group, bytes of its codes, scales of a group, rows.
static std::vector<uint64_t> describe(const mw_rt_form &form) {
  std::vector<uint64_t> numbers;
  for (int64_t number : {form.columns, getBlockRows(form), getBlockColumns(form), sizeOfGroup(form),
                         sizeOfCodes(form), countScales(form), form.rows})
    numbers.push_back(uint64_t(number));
  return numbers;
}

/// Parameters: items, to, from, and the form. An item is an element.
static std::string writeDecode(const std::string &name, bool isFp4, int64_t dtype) {
  std::string size = std::to_string(sizeOf(DType(dtype)));
  std::string body = kRegisters + std::string("mad.lo.u64 %to, %i, ") + size + ", %p1;\n" +
                     splitItem(3) + "mov.u64 %x0, %r;\n" + splitItem(4) +
                     "mad.lo.u64 %from, %i, %p6, %p2;\nmad.lo.u64 %at, %r, %p3, %x0;\n"
                     "div.u64 %n, %x0, %p5;\nadd.u64 %n, %n, %p7;\nadd.u64 %n, %n, %from;\n" +
                     loadByte("%n", "%e0");
  if (isFp4) {
    body += "and.b64 %x1, %at, 1;\nshl.b64 %x1, %x1, 2;\ncvt.u32.u64 %e2, %x1;\n"
            "shr.u64 %at, %at, 1;\nadd.u64 %at, %at, %from;\n" +
            loadByte("%at", "%e1") + "shr.u32 %e1, %e1, %e2;\nand.b32 %e1, %e1, 15;\n" +
            // The number of the whole weight is behind the scales.
            "add.u64 %n, %from, %p7;\nadd.u64 %n, %n, %p8;\nmov.b32 %e2, 0;\n";
    for (int i = 0; i < 4; ++i)
      body += loadByte("%n", "%e3") + "shl.b32 %e3, %e3, " + std::to_string(8 * i) +
              ";\nor.b32 %e2, %e2, %e3;\nadd.u64 %n, %n, 1;\n";
    body += fromE4M3("%e0", "%g1") + "mov.b32 %g2, %e2;\nmul.rn.f32 %g1, %g1, %g2;\n"
                                     "mul.rn.f32 %g1, %g1, 0f39C30C31;\n" +
            fromE2M1("%e1", "%g0");
  } else {
    body += "add.u64 %at, %at, %from;\n" + loadByte("%at", "%e1") + getPower("%e0", "%g1") +
            fromE4M3("%e1", "%g0");
  }
  return writeKernel(name, 10, body + "mul.rn.f32 %f2, %g0, %g1;\n" + storeFloat(dtype));
}

/// Parameters: items, to, from, the form, and the largest magnitude of the weight. An item is a block.
static std::string writeEncode(const std::string &name, bool isFp4, int64_t dtype) {
  std::string size = std::to_string(sizeOf(DType(dtype)));
  // %y1: the first row, %y2: its rows in the weight, %y3: a row; %x2, %y0: the columns.
  std::string seek = "add.u64 %at, %y1, %y3;\nmul.lo.u64 %at, %at, %p3;\nadd.u64 %at, %at, %x2;\n"
                     "mad.lo.u64 %from, %at, " + size + ", %p2;\nmov.u64 %q, %x2;\n";
  std::string advance = "add.u64 %from, %from, " + size + ";\nadd.u64 %q, %q, 1;\n";
  std::string body = kRegisters + splitItem(8) +
                     "mov.u64 %x0, %i;\nmov.u64 %x1, %r;\nmul.lo.u64 %x2, %x1, %p5;\n"
                     "add.u64 %y0, %x2, %p5;\nmin.u64 %y0, %y0, %p3;\nmul.lo.u64 %y1, %x0, %p4;\n"
                     "sub.u64 %y2, %p9, %y1;\nmin.u64 %y2, %y2, %p4;\nmov.b32 %e0, 0;\n"
                     "mov.u64 %y3, 0;\n"
                     "tops:\nsetp.ge.u64 %c1, %y3, %y2;\n@%c1 bra topped;\n" +
                     seek + "top:\nsetp.ge.u64 %c2, %q, %y0;\n@%c2 bra rowed;\n" +
                     loadFloat(dtype) +
                     "mov.b32 %e1, %f2;\nand.b32 %e1, %e1, 2147483647;\nmax.u32 %e0, %e0, %e1;\n" +
                     advance + "bra top;\nrowed:\nadd.u64 %y3, %y3, 1;\nbra tops;\ntopped:\n"
                               "mov.b32 %g0, %e0;\nmad.lo.u64 %to, %x0, %p6, %p1;\n"
                               "add.u64 %n, %to, %p7;\nadd.u64 %n, %n, %x1;\n";
  if (isFp4) {
    body += "ld.global.f32 %g2, [%p10];\nsetp.gt.f32 %c1, %g2, 0f00000000;\n"
            "div.rn.f32 %g3, 0f45280000, %g2;\nmin.f32 %g3, %g3, 0f7F7FFFFF;\n"
            "selp.f32 %g3, %g3, 0f3F800000, %c1;\nmul.rn.f32 %g4, %g3, 0f3E2AAAAB;\n"
            "mul.rn.f32 %g0, %g0, %g4;\nmin.f32 %g0, %g0, 0f43E00000;\n" +
            toE4M3("%g0", "%e2") + storeByte("%e2", "%n") + fromE4M3("%e2", "%g5") +
            "div.rn.f32 %g6, 0f3F800000, %g3;\nmul.rn.f32 %g5, %g5, %g6;\n"
            "div.rn.f32 %g1, 0f3F800000, %g5;\nmin.f32 %g1, %g1, 0f7F7FFFFF;\n"
            // The first block of a group writes the number of the whole weight.
            "setp.ne.u64 %c1, %x1, 0;\n@%c1 bra scaled;\nadd.u64 %n, %to, %p7;\n"
            "add.u64 %n, %n, %p8;\nmov.b32 %e2, %g2;\n";
    for (int i = 0; i < 4; ++i)
      body += storeByte("%e2", "%n") + "shr.u32 %e2, %e2, 8;\nadd.u64 %n, %n, 1;\n";
    body += "scaled:\n";
  } else {
    body += "mul.rn.f32 %g0, %g0, 0f3B124925;\nmov.b32 %e1, %g0;\nshr.u32 %e5, %e1, 23;\n"
            "and.b32 %e3, %e1, 8388607;\nsetp.ne.u32 %c1, %e3, 0;\nselp.b32 %e4, 1, 0, %c1;\n"
            "add.u32 %e2, %e5, %e4;\nsetp.gt.u32 %c1, %e3, 4194304;\nselp.b32 %e4, 1, 0, %c1;\n"
            "setp.eq.u32 %c2, %e5, 0;\nselp.b32 %e2, %e4, %e2, %c2;\n" +
            storeByte("%e2", "%n") + "sub.u32 %e3, 254, %e2;\n" + getPower("%e3", "%g1");
  }
  // The code of the element at column %q, zero behind the rows of the weight.
  std::string code = "mov.f32 %g0, 0f00000000;\nsetp.ge.u64 %c1, %y3, %y2;\n@%c1 bra zeroLABEL;\n" +
                     loadFloat(dtype) + "mul.rn.f32 %g0, %f2, %g1;\nzeroLABEL:\n";
  auto labelled = [](std::string text, const std::string &label) {
    for (size_t at = 0; (at = text.find("LABEL", at)) != std::string::npos; at += label.size())
      text.replace(at, 5, label);
    return text;
  };
  body += "mov.u64 %y3, 0;\nrows:\nsetp.ge.u64 %c1, %y3, %p4;\n@%c1 bra done;\n" + seek +
          "columns:\nsetp.ge.u64 %c2, %q, %y0;\n@%c2 bra next;\n" +
          "mad.lo.u64 %at, %y3, %p3, %q;\n" + labelled(code, "0");
  if (isFp4) {
    std::string clip = "max.f32 %g0, %g0, 0fC0C00000;\nmin.f32 %g0, %g0, 0f40C00000;\n";
    body += clip + toE2M1("%g0", "%e2") + advance + labelled(code, "1") + clip +
            toE2M1("%g0", "%e3") + "shl.b32 %e3, %e3, 4;\nor.b32 %e2, %e2, %e3;\n" +
            "shr.u64 %at, %at, 1;\n";
  } else {
    body += toE4M3("%g0", "%e2");
  }
  body += "add.u64 %at, %at, %to;\n" + storeByte("%e2", "%at") + advance +
          "bra columns;\nnext:\nadd.u64 %y3, %y3, 1;\nbra rows;\n";
  return writeKernel(name, 11, body);
}

/// Elements of which one thread finds the largest.
static constexpr int64_t kPiece = 64;

/// Parameters: items, data, word, elements. Magnitudes are ordered like their bits.
static std::string writeLargest(const std::string &name, int64_t dtype) {
  std::string size = std::to_string(sizeOf(DType(dtype))), piece = std::to_string(kPiece);
  return writeKernel(name, 4,
                     kRegisters + std::string("mul.lo.u64 %n, %i, ") + piece + ";\nadd.u64 %q, %n, " +
                         piece + ";\nmin.u64 %q, %q, %p3;\nmad.lo.u64 %from, %n, " + size +
                         ", %p1;\nmov.b32 %e0, 0;\nnext:\nsetp.ge.u64 %c1, %n, %q;\n"
                         "@%c1 bra end;\n" +
                         loadFloat(dtype) +
                         "mov.b32 %e1, %f2;\nand.b32 %e1, %e1, 2147483647;\n"
                         "max.u32 %e0, %e0, %e1;\nadd.u64 %from, %from, " + size +
                         ";\nadd.u64 %n, %n, 1;\nbra next;\nend:\n"
                         "atom.global.max.u32 %e1, [%p2], %e0;\n");
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

static std::string getName(const char *what, const mw_rt_form &form, int64_t dtype) {
  return std::string("mw_") + what + "_" + nameOfForm(form.kind) + "_" + std::to_string(dtype);
}

void HelperKernels::encode(cuda::Stream *stream, const mw_rt_form &form, int64_t dtype,
                           const void *weight, const void *largest, void *to) {
  bool isFp4 = form.kind == MW_RT_NVFP4;
  if (isFp4 && form.columns % 2 != 0)
    throw Failure("a weight of " + std::to_string(form.columns) +
                  " columns in nvfp4: expected an even number on a GPU");
  std::vector<uint64_t> arguments{addressOf(to), addressOf(weight)};
  std::vector<uint64_t> numbers = describe(form);
  arguments.insert(arguments.end(), numbers.begin(), numbers.end());
  arguments.push_back(addressOf(largest));
  std::string name = getName("encode", form, dtype);
  launch(stream, name, writeEncode(name, isFp4, dtype), countGroups(form) * countScales(form),
         std::move(arguments));
}

void HelperKernels::decode(cuda::Stream *stream, const mw_rt_form &form, int64_t dtype,
                           const void *from, void *weight) {
  std::vector<uint64_t> arguments{addressOf(weight), addressOf(from)};
  std::vector<uint64_t> numbers = describe(form);
  arguments.insert(arguments.end(), numbers.begin(), numbers.end());
  std::string name = getName("decode", form, dtype);
  launch(stream, name, writeDecode(name, form.kind == MW_RT_NVFP4, dtype), form.rows * form.columns,
         std::move(arguments));
}

void HelperKernels::findLargest(cuda::Stream *stream, int64_t dtype, const void *data, int64_t count,
                                void *to) {
  clear(stream, to, sizeof(float));
  std::string name = "mw_largest_" + std::to_string(dtype);
  launch(stream, name, writeLargest(name, dtype), (count + kPiece - 1) / kPiece,
         {addressOf(data), addressOf(to), uint64_t(count)});
}

} // namespace meshwright::rt::gpu
