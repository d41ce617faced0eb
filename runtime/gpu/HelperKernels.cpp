//===- HelperKernels.cpp - kernels of the backend itself ------------------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// HelperText.h says which registers the body of a kernel has.
//
//===----------------------------------------------------------------------===//

#include "HelperKernels.h"

#include "HelperText.h"

#include "meshwright/runtime/include/Types.h"

#include <algorithm>
#include <sstream>

namespace meshwright::rt::gpu {

static constexpr int64_t kThreads = 128;

//===----------------------------------------------------------------------===//
// Boxes
//===----------------------------------------------------------------------===//

Box Box::make(const std::vector<int64_t> &fromShape, const std::vector<int64_t> &source,
              const std::vector<int64_t> &toShape, const std::vector<int64_t> &destination,
              const std::vector<int64_t> &extents, int64_t elementSize) {
  Box box;
  box.extents = extents;
  box.elementSize = elementSize;
  box.toStrides.resize(extents.size());
  box.fromStrides.resize(extents.size());
  int64_t to = elementSize, from = elementSize;
  for (size_t d = extents.size(); d-- > 0;) {
    box.toStrides[d] = to;
    box.fromStrides[d] = from;
    box.toOffset += destination[d] * to;
    box.fromOffset += source[d] * from;
    to *= toShape[d];
    from *= fromShape[d];
  }
  return box;
}

void Box::simplify() {
  std::vector<int64_t> sizes, to, from;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 1)
      continue;
    if (!sizes.empty() && to.back() == extents[d] * toStrides[d] &&
        from.back() == extents[d] * fromStrides[d]) {
      sizes.back() *= extents[d];
      to.back() = toStrides[d];
      from.back() = fromStrides[d];
      continue;
    }
    sizes.push_back(extents[d]);
    to.push_back(toStrides[d]);
    from.push_back(fromStrides[d]);
  }
  bool isRun = !sizes.empty() && to.back() == elementSize && from.back() == elementSize;
  int64_t run = isRun ? sizes.back() * elementSize : elementSize;
  if (isRun) {
    sizes.pop_back();
    to.pop_back();
    from.pop_back();
  }
  // The widest unit that divides the run, all strides and both offsets.
  int64_t unit = 16;
  auto divides = [&](int64_t bytes) { return bytes % unit == 0; };
  while (!divides(run) || !divides(toOffset) || !divides(fromOffset) ||
         !std::all_of(to.begin(), to.end(), divides) ||
         !std::all_of(from.begin(), from.end(), divides))
    unit /= 2;
  if (run > unit || sizes.empty()) {
    sizes.push_back(run / unit);
    to.push_back(unit);
    from.push_back(unit);
  }
  extents = std::move(sizes);
  toStrides = std::move(to);
  fromStrides = std::move(from);
  elementSize = unit;
}

//===----------------------------------------------------------------------===//
// Texts
//===----------------------------------------------------------------------===//

namespace {
/// The type of a register that holds a unit, and the suffix and operand of its accesses.
struct Unit {
  explicit Unit(int64_t bytes)
      : suffix(bytes == 16 ? "v2.b64" : "b" + std::to_string(8 * bytes)),
        value(bytes == 16 ? "{%x0, %x1}" : bytes == 8 ? "%x0" : bytes == 4 ? "%w0" : "%h0") {}
  std::string suffix, value;
};
} // namespace

std::string writeKernel(const std::string &name, size_t parameters, const std::string &body) {
  std::ostringstream os;
  os << ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry " << name << "(";
  for (size_t i = 0; i < parameters; ++i)
    os << (i ? ", " : "") << ".param .u64 q" << i;
  os << ")\n{\n.reg .b64 %p<" << std::max<size_t>(parameters, 1) << ">;\n"
     << ".reg .b64 %i, %q, %r, %to, %from, %n, %at;\n.reg .b64 %x<4>;\n.reg .b32 %w<6>;\n"
     << ".reg .b16 %h<4>;\n.reg .f32 %f<4>;\n.reg .f64 %d<4>;\n.reg .pred %c<4>;\n";
  for (size_t i = 0; i < parameters; ++i)
    os << "ld.param.u64 %p" << i << ", [q" << i << "];\n";
  os << "mov.u32 %w0, %ctaid.x;\nmov.u32 %w1, %ntid.x;\nmov.u32 %w2, %tid.x;\n"
     << "cvt.u64.u32 %i, %w2;\nmad.wide.u32 %i, %w0, %w1, %i;\n"
     << "setp.ge.u64 %c0, %i, %p0;\n@%c0 bra done;\n"
     << body << "done:\nret;\n}\n";
  return os.str();
}

std::string splitItem(size_t parameter) {
  std::string by = "%p" + std::to_string(parameter);
  return "div.u64 %q, %i, " + by + ";\nmul.lo.u64 %r, %q, " + by +
         ";\nsub.u64 %r, %i, %r;\nmov.u64 %i, %q;\n";
}

static std::string advance(const char *address, const char *index, size_t parameter) {
  return std::string("mad.lo.u64 ") + address + ", " + index + ", %p" + std::to_string(parameter) +
         ", " + address + ";\n";
}

/// Copies a box, or fills it. Parameters: items, to, from or the value, then for each dimension its
/// extent, its stride in `to`, and its stride in `from`.
static std::string writeBox(const std::string &name, size_t dims, int64_t bytes, bool fills) {
  std::string body = "mov.u64 %to, %p1;\nmov.u64 %from, %p2;\n";
  for (size_t d = dims; d-- > 0;) {
    const char *index = d > 0 ? "%r" : "%i";
    if (d > 0)
      body += splitItem(3 + 3 * d);
    body += advance("%to", index, 4 + 3 * d);
    if (!fills)
      body += advance("%from", index, 5 + 3 * d);
  }
  Unit unit(bytes);
  if (!fills)
    body += "ld.global." + unit.suffix + " " + unit.value + ", [%from];\n";
  else if (bytes == 8)
    body += "mov.u64 %x0, %p2;\n";
  else
    body += std::string("cvt.u") + (bytes == 4 ? "32" : "16") + ".u64 " + unit.value + ", %p2;\n";
  body += "st.global." + unit.suffix + " [%to], " + unit.value + ";\n";
  return writeKernel(name, 3 + 3 * dims, body);
}

namespace {
/// How elements are loaded to and stored from the registers in which they are combined. `A` and `B`
/// stand for the register.
struct Arithmetic {
  std::string type, registers, load, store;
};
} // namespace

static Arithmetic getArithmetic(int64_t dtype) {
  switch (DType(dtype)) {
  case DType::F32:
    return {"f32", "%f", "ld.global.f32 A, [%from];\n", "st.global.f32 [%to], A;\n"};
  case DType::BF16:
    return {"f32", "%f",
            "ld.global.b16 %h0, [%from];\nmov.b16 %h1, 0;\nmov.b32 %w3, {%h1, %h0};\n"
            "mov.b32 A, %w3;\n",
            "cvt.rn.bf16.f32 %h0, A;\nst.global.b16 [%to], %h0;\n"};
  case DType::F16:
    return {"f32", "%f", "ld.global.b16 %h0, [%from];\ncvt.f32.f16 A, %h0;\n",
            "cvt.rn.f16.f32 %h0, A;\nst.global.b16 [%to], %h0;\n"};
  case DType::F64:
    return {"f64", "%d", "ld.global.f64 A, [%from];\n", "st.global.f64 [%to], A;\n"};
  case DType::I64:
    return {"s64", "%x", "ld.global.b64 A, [%from];\n", "st.global.b64 [%to], A;\n"};
  case DType::I32:
    return {"s32", "%w", "ld.global.b32 A, [%from];\n", "st.global.b32 [%to], A;\n"};
  case DType::I1:
    return {"b16", "%h", "ld.global.b8 A, [%from];\n", "st.global.b8 [%to], A;\n"};
#define MW_ELEMENT_TYPE(...)
#define MW_CODE_TYPE(ID, ...) case DType::ID:
#include "meshwright-c/ElementTypes.def"
    break;
  }
  return {};
}

static std::string withRegister(std::string text, const std::string &name) {
  for (size_t at = 0; (at = text.find('A', at)) != std::string::npos; at += name.size())
    text.replace(at, 1, name);
  return text;
}

std::string loadFloat(int64_t dtype) {
  std::string load = withRegister(getArithmetic(dtype).load, DType(dtype) == DType::F64 ? "%d2" : "%f2");
  return DType(dtype) == DType::F64 ? load + "cvt.rn.f32.f64 %f2, %d2;\n" : load;
}

std::string storeFloat(int64_t dtype) {
  bool isWide = DType(dtype) == DType::F64;
  std::string store = withRegister(getArithmetic(dtype).store, isWide ? "%d2" : "%f2");
  return isWide ? "cvt.f64.f32 %d2, %f2;\n" + store : store;
}

/// Parameters: items, to, from, stride in bytes, members.
static std::string writeReduce(const std::string &name, int64_t dtype, int64_t reduction) {
  Arithmetic kind = getArithmetic(dtype);
  // The first registers of a type are used for loads of halves and for indices.
  std::string sum = kind.registers + "2", term = kind.registers + "3";
  if (kind.type == "s32")
    sum = "%w4", term = "%w5";
  bool isFloat = kind.type[0] == 'f';
  std::string combine;
  if (kind.type == "b16")
    combine = "or.b16 " + sum + ", " + sum + ", " + term + ";\n";
  else if (reduction == MW_RT_SUM)
    combine = std::string("add.") + (isFloat ? "rn." : "") + kind.type + " " + sum + ", " + sum +
              ", " + term + ";\n";
  else if (!isFloat)
    combine = "max." + kind.type + " " + sum + ", " + sum + ", " + term + ";\n";
  else // NaN if either is NaN.
    combine = "setp.nan." + kind.type + " %c1, " + sum + ", " + sum + ";\nsetp.gt." + kind.type +
              " %c2, " + sum + ", " + term + ";\nor.pred %c1, %c1, %c2;\nselp." + kind.type + " " +
              sum + ", " + sum + ", " + term + ", %c1;\n";
  std::string size = std::to_string(sizeOf(DType(dtype)));
  std::string body = "mad.lo.u64 %to, %i, " + size + ", %p1;\nmad.lo.u64 %from, %i, " + size +
                     ", %p2;\n" + withRegister(kind.load, sum) +
                     "mov.u64 %n, 1;\nnext:\nsetp.ge.u64 %c0, %n, %p4;\n@%c0 bra end;\n"
                     "add.u64 %from, %from, %p3;\n" +
                     withRegister(kind.load, term) + combine +
                     "add.u64 %n, %n, 1;\nbra next;\nend:\n" + withRegister(kind.store, sum);
  return writeKernel(name, 5, body);
}

/// Parameters: items, data, word; with `counts` also the address of the number of rows that exist, the number of all
/// rows, and the items of a row.
static std::string writeFinite(const std::string &name, int64_t dtype, bool counts) {
  int64_t bytes = sizeOf(DType(dtype));
  uint64_t exponent = dtype == MW_F64   ? 0x7ff0000000000000
                      : dtype == MW_F32 ? 0x7f800000
                      : dtype == MW_F16 ? 0x7c00
                                        : 0x7f80;
  uint64_t sign = uint64_t(1) << (8 * bytes - 1);
  std::string load = bytes == 8   ? "ld.global.b64 %x0, [%from];\n"
                     : bytes == 4 ? "ld.global.b32 %w0, [%from];\ncvt.u64.u32 %x0, %w0;\n"
                                  : "ld.global.b16 %h0, [%from];\ncvt.u64.u16 %x0, %h0;\n";
  auto number = [](uint64_t value) { return std::to_string(int64_t(value)); };
  std::string count = "ld.global.b64 %n, [%p3];\nmin.u64 %n, %n, %p4;\nmul.lo.u64 %n, %n, %p5;\n"
                      "setp.ge.u64 %c0, %i, %n;\n@%c0 bra done;\n";
  return writeKernel(name, counts ? 6 : 3,
               (counts ? count : "") + "mad.lo.u64 %from, %i, " + std::to_string(bytes) + ", %p1;\n" + load +
                   "and.b64 %x1, %x0, " + number(exponent) + ";\nsetp.ne.s64 %c0, %x1, " +
                   number(exponent) + ";\n@%c0 bra done;\n" +
                   // NaN: a mantissa that is not 0.
                   "and.b64 %x1, %x0, " + number(sign - 1) + ";\nsetp.ne.s64 %c1, %x1, " +
                   number(exponent) + ";\nand.b64 %x2, %x0, " + number(sign) +
                   ";\nsetp.ne.s64 %c2, %x2, 0;\nselp.b64 %x3, 1, 2, %c2;\n" +
                   "selp.b64 %x3, 0, %x3, %c1;\nshl.b64 %x1, %i, 2;\nadd.u64 %x3, %x3, %x1;\n" +
                   "atom.global.min.u64 %x2, [%p2], %x3;\n");
}

/// Loads the index at [%at] to %n.
static std::string loadIndex(int64_t type) {
  return type == MW_I32 ? "ld.global.b32 %w0, [%at];\ncvt.s64.s32 %n, %w0;\n"
                        : "ld.global.b64 %n, [%at];\n";
}

/// Parameters: items, to, from, indices, count, size, units of a row.
static std::string writeGatherRows(const std::string &name, int64_t bytes) {
  Unit unit(bytes);
  std::string size = std::to_string(bytes);
  return writeKernel(name, 7,
               "mad.lo.u64 %to, %i, " + size + ", %p1;\n" + splitItem(6) +
                   // The column.
                   "mad.lo.u64 %from, %r, " + size + ", %p2;\n" + splitItem(4) +
                   "mad.lo.u64 %at, %r, 8, %p3;\n" + loadIndex(MW_I64) +
                   "setp.ge.u64 %c0, %n, %p5;\n@%c0 bra done;\n" +
                   "mad.lo.u64 %i, %i, %p5, %n;\nmul.lo.u64 %i, %i, %p6;\n" + "mad.lo.u64 %from, %i, " +
                   size + ", %from;\nld.global." + unit.suffix + " " + unit.value +
                   ", [%from];\nst.global." + unit.suffix + " [%to], " + unit.value + ";\n");
}

/// Parameters: items, to, from, indices, count, size, units of a row. An item is a column of an
/// outer index: it goes through the indices in order, so the last of equal indices wins.
static std::string writeScatterRows(const std::string &name, int64_t bytes, int64_t indexType) {
  Unit unit(bytes);
  std::string size = std::to_string(bytes);
  return writeKernel(
      name, 7,
      splitItem(6) + // %r is the column, %i the outer index.
          "mul.lo.u64 %from, %i, %p4;\nmad.lo.u64 %from, %from, %p6, %r;\n" +
          "mad.lo.u64 %from, %from, " + size + ", %p2;\nmul.lo.u64 %i, %i, %p5;\n" +
          "mul.lo.u64 %q, %p6, " + size + ";\nmov.u64 %at, %p3;\nmov.u64 %x2, 0;\n" +
          "next:\nsetp.ge.u64 %c0, %x2, %p4;\n@%c0 bra done;\n" + loadIndex(indexType) +
          "setp.ge.u64 %c1, %n, %p5;\n@%c1 bra skip;\nadd.u64 %n, %n, %i;\n" +
          "mad.lo.u64 %n, %n, %p6, %r;\nmad.lo.u64 %to, %n, " + size + ", %p1;\n" + "ld.global." +
          unit.suffix + " " + unit.value + ", [%from];\nst.global." + unit.suffix + " [%to], " +
          unit.value + ";\nskip:\nadd.u64 %from, %from, %q;\nadd.u64 %at, %at, " +
          (indexType == MW_I32 ? "4" : "8") + ";\nadd.u64 %x2, %x2, 1;\nbra next;\n");
}

/// Parameters: items, indices, size, word, log. With `skips` -1 is an index, too.
static std::string writeCheckIndices(const std::string &name, int64_t indexType, bool skips) {
  return writeKernel(name, 5,
               std::string("mad.lo.u64 %at, %i, ") + (indexType == MW_I32 ? "4" : "8") +
                   ", %p1;\n" + loadIndex(indexType) +
                   (skips ? "add.u64 %x2, %n, 1;\nsetp.le.u64 %c1, %x2, %p2;\n"
                          : "setp.lt.u64 %c1, %n, %p2;\n") +
                   "@%c1 bra fine;\natom.global.min.u64 %x0, [%p3], %i;\nfine:\n" +
                   "setp.eq.u64 %c2, %p4, 0;\n@%c2 bra done;\nmad.lo.u64 %to, %i, 8, %p4;\n" +
                   "st.global.b64 [%to], %n;\n");
}

static std::string writeCountDropped(const std::string &name, int64_t indexType) {
  std::string bytes = indexType == MW_I32 ? "4" : "8";
  return writeKernel(name, 4,
                     "mad.lo.u64 %at, %i, " + bytes + ", %p1;\n" + loadIndex(indexType) +
                         "setp.lt.s64 %c1, %n, 0;\n@%c1 bra done;\nmad.lo.u64 %at, %i, " + bytes +
                         ", %p2;\n" + loadIndex(indexType) +
                         "setp.ge.s64 %c2, %n, 0;\n@%c2 bra done;\n"
                         "atom.global.add.u64 %x0, [%p3], 1;\n");
}

//===----------------------------------------------------------------------===//
// Launches
//===----------------------------------------------------------------------===//

void HelperKernels::launch(cuda::Stream *stream, const std::string &name, const std::string &text,
                           int64_t threads, std::vector<uint64_t> arguments) {
  if (skips)
    return;
  cuda::Function *function = processor.getHelper(name, text);
  if (prepares || threads == 0)
    return;
  arguments.insert(arguments.begin(), uint64_t(threads));
  std::vector<void *> addresses;
  for (uint64_t &argument : arguments)
    addresses.push_back(&argument);
  const Cuda &cuda = processor.getCuda();
  check(cuda,
        cuda.cuLaunchKernel(function, unsigned((threads + kThreads - 1) / kThreads), 1, 1, kThreads,
                            1, 1, 0, stream, addresses.data(), nullptr),
        "cuLaunchKernel");
}

void HelperKernels::copyBytes(cuda::Stream *stream, void *to, const void *from, int64_t bytes) {
  const Cuda &cuda = processor.getCuda();
  if (!prepares && !skips && bytes > 0 && to != from)
    check(cuda, cuda.cuMemcpyDtoDAsync(addressOf(to), addressOf(from), bytes, stream),
          "cuMemcpyDtoDAsync");
}

void HelperKernels::clear(cuda::Stream *stream, void *to, int64_t bytes) {
  const Cuda &cuda = processor.getCuda();
  if (!prepares && !skips && bytes > 0)
    check(cuda, cuda.cuMemsetD8Async(addressOf(to), 0, bytes, stream), "cuMemsetD8Async");
}

void HelperKernels::copyBox(cuda::Stream *stream, void *to, const void *from,
                            const StridedBox &box) {
  Box simple{box};
  // The addresses of buffers are as aligned as offsets are.
  simple.toOffset += addressOf(to) % 256;
  simple.fromOffset += addressOf(from) % 256;
  if (simple.getBytes() == 0)
    return;
  simple.simplify();
  auto *target = static_cast<char *>(to) + box.toOffset;
  auto *source = static_cast<const char *>(from) + box.fromOffset;
  size_t dims = simple.extents.size();
  if (dims == 1 && simple.toStrides[0] == simple.elementSize &&
      simple.fromStrides[0] == simple.elementSize)
    return copyBytes(stream, target, source, simple.getBytes());
  std::string name =
      "mw_copy_box_" + std::to_string(dims) + "_" + std::to_string(simple.elementSize);
  std::vector<uint64_t> arguments{addressOf(target), addressOf(source)};
  for (size_t d = 0; d < dims; ++d)
    for (int64_t number : {simple.extents[d], simple.toStrides[d], simple.fromStrides[d]})
      arguments.push_back(uint64_t(number));
  launch(stream, name, writeBox(name, dims, simple.elementSize, /*fills=*/false),
         countOf(simple.extents), arguments);
}

void HelperKernels::fillBox(cuda::Stream *stream, void *to, uint64_t value, const Box &box) {
  if (box.getBytes() == 0)
    return;
  size_t dims = box.extents.size();
  std::string name = "mw_fill_box_" + std::to_string(dims) + "_" + std::to_string(box.elementSize);
  std::vector<uint64_t> arguments{addressOf(to) + uint64_t(box.toOffset), value};
  for (size_t d = 0; d < dims; ++d)
    for (int64_t number : {box.extents[d], box.toStrides[d], int64_t(0)})
      arguments.push_back(uint64_t(number));
  launch(stream, name, writeBox(name, dims, box.elementSize, /*fills=*/true), countOf(box.extents),
         arguments);
}

void HelperKernels::reduce(cuda::Stream *stream, int64_t dtype, int64_t reduction, void *to,
                           const void *from, int64_t stride, int64_t members, int64_t count) {
  std::string name = "mw_reduce_" + std::to_string(dtype) + "_" + std::to_string(reduction);
  launch(stream, name, writeReduce(name, dtype, reduction), count,
         {addressOf(to), addressOf(from), uint64_t(stride), uint64_t(members)});
}

void HelperKernels::findNotFinite(cuda::Stream *stream, int64_t dtype, const void *data,
                                  int64_t count, const ExistingRows &existing, void *word) {
  if (!isFloat(DType(dtype)))
    return;
  bool counts = existing.rows > 0;
  std::string name = (counts ? "mw_finite_rows_" : "mw_finite_") + std::to_string(dtype);
  std::vector<uint64_t> arguments{addressOf(data), addressOf(word)};
  if (counts)
    arguments.insert(arguments.end(), {addressOf(existing.number), uint64_t(existing.rows),
                                       uint64_t(count / existing.rows)});
  launch(stream, name, writeFinite(name, dtype, counts), count, arguments);
}

/// The widest unit of rows of so many bytes.
static int64_t getUnit(int64_t rowBytes) {
  int64_t unit = 16;
  while (rowBytes % unit != 0)
    unit /= 2;
  return unit;
}

void HelperKernels::gatherRows(cuda::Stream *stream, void *to, const void *from,
                               const void *indices, int64_t outer, int64_t size, int64_t count,
                               int64_t rowBytes) {
  int64_t unit = getUnit(rowBytes | int64_t((addressOf(to) | addressOf(from)) % 16));
  std::string name = "mw_gather_rows_" + std::to_string(unit);
  launch(stream, name, writeGatherRows(name, unit), outer * count * (rowBytes / unit),
         {addressOf(to), addressOf(from), addressOf(indices), uint64_t(count), uint64_t(size),
          uint64_t(rowBytes / unit)});
}

void HelperKernels::scatterRows(cuda::Stream *stream, int64_t indexType, void *to,
                                const void *from, const void *indices, int64_t outer,
                                int64_t size, int64_t count, int64_t rowBytes) {
  int64_t unit = getUnit(rowBytes | int64_t((addressOf(to) | addressOf(from)) % 16));
  std::string name = "mw_scatter_rows_" + std::to_string(unit) + "_" + std::to_string(indexType);
  launch(stream, name, writeScatterRows(name, unit, indexType), outer * (rowBytes / unit),
         {addressOf(to), addressOf(from), addressOf(indices), uint64_t(count), uint64_t(size),
          uint64_t(rowBytes / unit)});
}

void HelperKernels::countDropped(cuda::Stream *stream, int64_t indexType, const void *before,
                                 const void *behind, int64_t count, void *word) {
  std::string name = "mw_count_dropped_" + std::to_string(indexType);
  launch(stream, name, writeCountDropped(name, indexType), count,
         {addressOf(before), addressOf(behind), addressOf(word)});
}

void HelperKernels::checkIndices(cuda::Stream *stream, int64_t indexType, const void *indices,
                                 int64_t count, int64_t size, bool skips, void *word, void *log) {
  std::string name = "mw_check_indices_" + std::to_string(indexType) + (skips ? "_skips" : "");
  launch(stream, name, writeCheckIndices(name, indexType, skips), count,
         {addressOf(indices), uint64_t(size), addressOf(word), addressOf(log)});
}

} // namespace meshwright::rt::gpu
