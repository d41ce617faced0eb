//===- CostModel.h - what communication costs -------------------*- C++ -*-===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The alpha-beta model that resharder, optimiser, scheduler and reports share.
// - The time of a collective is its launch, its steps times the latency, and its bytes
//   over the bandwidth, by the slowest link among its axes.
// - Times are whole picoseconds, so that equal costs compare equal.
//
//===----------------------------------------------------------------------===//

#ifndef MESHWRIGHT_LIB_COSTMODEL_COSTMODEL_H
#define MESHWRIGHT_LIB_COSTMODEL_COSTMODEL_H

#include "meshwright/dialects/Dist/Layout.h"
#include "meshwright/lib/CostModel/Rates.h"

#include <memory>
#include <optional>

namespace meshwright {

/// The cost of a move. Costs compare member by member, in this order.
struct Cost {
  /// Picoseconds.
  int64_t time = 0;
  /// Bytes that a rank sends, the largest over the ranks.
  int64_t bytes = 0;
  /// Launches of collectives.
  int64_t launches = 0;
  /// Launches of dist.redistribute. At equal cost the other collectives are preferred.
  int64_t redistributes = 0;
  /// Local steps (slices, pads), which break the last ties.
  int64_t localSteps = 0;

  std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t> key() const {
    return {time, bytes, launches, redistributes, localSteps};
  }
  bool operator<(const Cost &other) const { return key() < other.key(); }
  bool operator==(const Cost &other) const { return key() == other.key(); }
  bool operator!=(const Cost &other) const { return !(*this == other); }
  Cost operator+(const Cost &other) const {
    return {time + other.time, bytes + other.bytes, launches + other.launches,
            redistributes + other.redistributes, localSteps + other.localSteps};
  }
};

/// A device and the links between devices. `docs/devices.md` shows the table.
struct Device {
  /// Operations per second of matrix products, by element type.
  double flopsF32 = 0, flopsBF16 = 0, flopsF16 = 0;
  /// Bytes per second and bytes; 0 is unlimited.
  double memoryBandwidth = 0;
  int64_t memorySize = 0;
  /// Between devices of one host: bytes per second in one direction, seconds.
  double linkBandwidth = 0, linkLatency = 0;
  /// Between hosts, along an axis named `host`.
  double networkBandwidth = 0, networkLatency = 0;
  /// Seconds to start a kernel or collective.
  double launch = 0;
  /// 1 if the links of one host move bytes while its devices compute. 0 if devices do it
  /// themselves, as cores that exchange data through shared memory.
  double overlap = 1;
  /// Measured rates of classes, which take the place of the numbers above; null for others.
  std::shared_ptr<const Rates> rates = nullptr;
  /// The name that reports show; empty: the spelling.
  std::string name;

  double getFlops(mlir::Type elementType) const;
};

/// A device by its spelling in a mesh: the name of a preset, keys that override
/// its numbers, or keys alone (`"h100"`, `"h100 memory_size=4e10"`). The empty
/// spelling is a device that costs nothing. Null if the spelling is wrong;
/// `error` then says why.
std::optional<Device> getDevice(llvm::StringRef spelling, std::string *error = nullptr);

/// The name of a device that reports show: the key `name`, or else the spelling.
std::string getDeviceName(llvm::StringRef spelling);

/// Checks the device that the mesh of a function names.
mlir::LogicalResult verifyDevice(dist::MeshAttr mesh, mlir::Operation *func);

/// Names of the presets, for messages.
llvm::ArrayRef<llvm::StringLiteral> getDeviceNames();

/// Bytes that a rank of a group of `ranks` sends by ring algorithms, rounded up. `bytes` is
/// the size of the larger side on a rank. Does not hold for redistribute, for which the
/// bytes depend on both layouts.
int64_t getBytesSent(dist::CollectiveKind kind, int64_t ranks, int64_t bytes);

/// Number of messages that follow each other: 0 for one rank, and for collectives
/// without communication.
int64_t getSteps(dist::CollectiveKind kind, int64_t ranks);

/// Bytes of one element, or of a tensor; parts of bytes round up for each
/// element.
int64_t getElementBytes(mlir::Type elementType);
int64_t getTensorBytes(mlir::Type tensorType);

/// Returns true if operand `i` has only the rows that exist, and goes to other ranks: the number of rows depends
/// on the data.
bool movesRows(dist::CollectiveOpInterface op, unsigned i);

/// The most bytes that a rank sends in the paired sends of a redistribute, and the most
/// peers that a rank has. Neither layout has unreduced axes. Factors, given flat and in
/// the same order, agree in padded size.
struct RedistributeCost {
  int64_t bytes = 0;
  int64_t peers = 0;
  /// The axes along which anything changes, in order.
  llvm::SmallVector<dist::Axis, 8> axes;
};

/// The work of a kernel, or of an op that is one.
struct KernelWork {
  /// The class of the kernel, in the order of the runtime's classes.
  enum Class { Rows, Product, Attention, Move } kind = Move;
  /// Operations, by element type of the results. They are those of products.
  llvm::SmallVector<std::pair<double, mlir::Type>, 1> flops;
  /// The operand type of the product, its rows (of attention: operations for each row of queries), and
  /// whether one operand is a weight, or the op the gradient of attention.
  mlir::Type type;
  double rows = 0;
  bool hasWeight = false, isGradient = false;
  /// The share of the operations that the kernel of attention does, because a mask hides the others.
  double visible = 1;
  /// `tableBytes` is the part of `bytes` that is a table, of which only some rows are read.
  int64_t bytes = 0, weightBytes = 0, tableBytes = 0;
  /// Elements that cheap and costlier ops compute, products aside.
  double cheapElements = 0, costlyElements = 0;
};

class CostModel {
public:
  /// The model of a mesh. Links are those that the mesh states, else those of its device,
  /// else equal bandwidths without latency. An unknown device counts as none; see
  /// `verifyDevice`.
  explicit CostModel(dist::MeshAttr mesh);

  dist::MeshAttr getMesh() const { return mesh; }
  const Device &getDevice() const { return device; }

  /// Picoseconds that a launch of `steps` messages, of `bytes` in all, takes over `axes`.
  int64_t getTime(llvm::ArrayRef<dist::Axis> axes, int64_t bytes, int64_t steps) const;

  /// A lower bound of any such time: over the fastest link of the mesh, without steps.
  int64_t getLeastTime(int64_t bytes) const;

  /// Picoseconds to read or write `bytes` of memory.
  int64_t getMemoryTime(int64_t bytes) const;

  /// Picoseconds of `flops` in `elementType`; 0 if the mesh names no device.
  int64_t getComputeTime(double flops, mlir::Type elementType) const;

  /// Picoseconds of a kernel without its launch, in a program with so many bytes of weights; 0 if they are
  /// not known. On a device without rates it is the longer of arithmetic and memory traffic.
  int64_t getKernelTime(const KernelWork &work, int64_t allWeights) const;

  /// Picoseconds to start a kernel or collective.
  int64_t getLaunchTime() const { return launch; }

  /// Returns true if collectives over these axes run beside the device's own work.
  bool runsBeside(llvm::ArrayRef<dist::Axis> axes) const;

  /// The cost of a collective with a larger side of `bytes` on a rank. `packedSides` (0 to
  /// 2) is the number of sides on which messages are packed or unpacked, because the
  /// dimension is not the outermost of the local value.
  Cost getCost(dist::CollectiveKind kind, llvm::ArrayRef<dist::Axis> axes, int64_t bytes,
               int packedSides = 0) const;

  /// The cost of a redistribute that sends `bytes` to at most `peers` ranks.
  Cost getRedistributeCost(llvm::ArrayRef<dist::Axis> axes, int64_t bytes, int64_t peers) const;

  /// The cost of a collective of an SPMD program, one launch for all of its operands; none
  /// if `op` is no collective.
  std::optional<Cost> getCost(mlir::Operation *op) const;
  Cost getCost(dist::CollectiveOpInterface op) const;

private:
  /// The time of a collective of a kind. Of a calibrated link the rate depends on the kind and the bytes.
  int64_t getTime(dist::CollectiveKind kind, llvm::ArrayRef<dist::Axis> axes, int64_t bytes, int64_t steps) const;
  struct Link {
    double bandwidth = 0; // 0 is one byte a picosecond
    int64_t latency = 0;  // picoseconds
    bool overlaps = true;
    /// True if the rates of the device hold for it.
    bool isCalibrated = false;
  };
  dist::MeshAttr mesh;
  Device device;
  mlir::SmallVector<Link, 4> links;
  int64_t launch = 0; // picoseconds
};

/// To how many others each rank of the group sends its whole value, by coordinate; empty
/// for collectives in which all ranks send alike.
llvm::SmallVector<int64_t> getNumReceivers(dist::CollectiveOpInterface op, dist::MeshAttr mesh);

/// The axes along which a collective moves data, without those of size 1.
dist::AxisList getCollectiveAxes(mlir::Operation *op, dist::MeshAttr mesh);

/// Bytes and peers of the redistribution of one operand.
RedistributeCost getRedistributeCost(const dist::Layout &from, const dist::Layout &to,
                                     int64_t elementBytes, dist::MeshAttr mesh);

/// One factor of both layouts: its padded size and its axes on either side. Two axes are
/// either equal or do not overlap.
struct RedistributeFactor {
  int64_t padded;
  llvm::ArrayRef<dist::Axis> from, to;
  /// The target's padded size, for getCrossingCost.
  int64_t paddedTo = 0;
};
RedistributeCost getRedistributeCost(llvm::ArrayRef<RedistributeFactor> factors,
                                     int64_t elementBytes);

/// The same for any axes and padded sizes on the two sides. Counts rank by rank; with more
/// than a few hundred ranks it assumes that each rank receives all that it needs.
RedistributeCost getCrossingCost(llvm::ArrayRef<RedistributeFactor> factors, int64_t elementBytes,
                                 dist::MeshAttr mesh);

} // namespace meshwright

#endif // MESHWRIGHT_LIB_COSTMODEL_COSTMODEL_H
