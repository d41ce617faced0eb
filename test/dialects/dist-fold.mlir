// Collectives that undo each other. All programs are legal before and after.
//
// RUN: sharding-opt %s --split-input-file --verify-placement --canonicalize --verify-placement | FileCheck %s

// CHECK-LABEL: func.func @gather_of_slice
// CHECK-NOT: = dist.
// CHECK: return %arg0
dist.mesh @mesh = <["tp"=4]>
func.func @gather_of_slice(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.slice %x axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}

// -----

// The slice appends padding, which the whole does not have.
// CHECK-LABEL: func.func @gather_of_padding_slice
// CHECK: dist.slice
// CHECK: dist.all_gather
dist.mesh @mesh = <["tp"=4]>
func.func @gather_of_padding_slice(
    %x: tensor<13x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<13x8xf32>})
    -> (tensor<13x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<13x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.slice %x axes ["tp"] dims [0] : (tensor<13x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %2 = nn.slice %1 starts [0, 0] limits [13, 8] strides [1, 1] : (tensor<16x8xf32>) -> tensor<13x8xf32>
  return %2 : tensor<13x8xf32>
}

// -----

// Padding that is there before is there afterwards.
// CHECK-LABEL: func.func @gather_of_slice_of_padded
// CHECK: %[[PADDED:.*]] = dist.pad %arg0
// CHECK-NEXT: %[[STRIPPED:.*]] = nn.slice %[[PADDED]]
// CHECK-NEXT: return %[[STRIPPED]]
dist.mesh @mesh = <["tp"=4]>
func.func @gather_of_slice_of_padded(
    %x: tensor<13x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<13x8xf32>})
    -> (tensor<13x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<13x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p = dist.pad %x dims [0] : (tensor<13x8xf32>) -> tensor<16x8xf32>
  %0 = dist.slice %p axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %2 = nn.slice %1 starts [0, 0] limits [13, 8] strides [1, 1] : (tensor<16x8xf32>) -> tensor<13x8xf32>
  return %2 : tensor<13x8xf32>
}

// -----

// A zigzag order is that of the whole; a gather and a slice keep it.
// CHECK-LABEL: func.func @slice_of_gather
// CHECK-NOT: = dist.
// CHECK: return %arg0, %arg1
dist.mesh @mesh = <["tp"=4]>
func.func @slice_of_gather(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>},
    %z: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 4{"tp"}), {}]>, dist.global = tensor<14x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 4{"tp"}), {}]>, dist.global = tensor<14x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %2 = dist.all_gather %z axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  // A shift by the number of chunks is none.
  %3 = dist.slice %2 axes ["tp"] dims [0] shift 4 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  return %1, %3 : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// A slice with a shift keeps another rank's chunk.
// CHECK-LABEL: func.func @shifted_slice_of_gather
// CHECK: dist.all_gather
// CHECK: dist.slice
// CHECK: dist.permute
dist.mesh @mesh = <["tp"=4]>
func.func @shifted_slice_of_gather(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.slice %0 axes ["tp"] dims [0] shift 1 : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %2 = dist.permute %1 axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// Other axes, another order of them, another dimension.
// CHECK-LABEL: func.func @other_slices
// CHECK: dist.all_gather
// CHECK: dist.slice
// CHECK: dist.all_gather
// CHECK-COUNT-2: dist.slice
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @other_slices(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<16x8xf32>},
    %y: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp", "dp"}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<16x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"dp"}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["dp", "tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = dist.slice %0 axes ["tp", "dp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %2 = dist.all_gather %y axes ["dp"] dims [0] : (tensor<8x8xf32>) -> tensor<16x8xf32>
  %3 = dist.slice %2 axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<8x8xf32>
  %4 = dist.slice %2 axes ["dp"] dims [1] : (tensor<16x8xf32>) -> tensor<16x4xf32>
  return %1, %3, %4 : tensor<4x8xf32>, tensor<8x8xf32>, tensor<16x4xf32>
}

// -----

// CHECK-LABEL: func.func @all_to_all_there_and_back
// CHECK-NOT: = dist.
// CHECK: return %arg0
dist.mesh @mesh = <["tp"=4]>
func.func @all_to_all_there_and_back(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_to_all %x axes ["tp"] from [0] to [1] : (tensor<4x8xf32>) -> tensor<16x2xf32>
  %1 = dist.all_to_all %0 axes ["tp"] from [1] to [0] : (tensor<16x2xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----

// CHECK-LABEL: func.func @all_to_all_onward
// CHECK-COUNT-2: dist.all_to_all
dist.mesh @mesh = <["tp"=4]>
func.func @all_to_all_onward(
    %x: tensor<4x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>, dist.global = tensor<16x8x8xf32>})
    -> (tensor<16x8x2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>, dist.global = tensor<16x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_to_all %x axes ["tp"] from [0] to [1] : (tensor<4x8x8xf32>) -> tensor<16x2x8xf32>
  %1 = dist.all_to_all %0 axes ["tp"] from [1] to [2] : (tensor<16x2x8xf32>) -> tensor<16x8x2xf32>
  return %1 : tensor<16x8x2xf32>
}

// -----

// By a shift and its opposite; in zigzag order, too.
// CHECK-LABEL: func.func @permute_there_and_back
// CHECK-NOT: = dist.
// CHECK: return %arg1, %arg0
dist.mesh @mesh = <["tp"=4]>
func.func @permute_there_and_back(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>},
    %z: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 4{"tp"}), {}]>, dist.global = tensor<14x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 4{"tp"}), {}]>, dist.global = tensor<14x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %z axes ["tp"] shift 1 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = dist.permute %0 axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = dist.permute %x axes ["tp"] shift 2 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = dist.permute %2 axes ["tp"] shift 2 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %3 : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// By pairs that are their own opposite.
// CHECK-LABEL: func.func @pairs_there_and_back
// CHECK-NOT: = dist.
// CHECK: return %arg0
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @pairs_there_and_back(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<13x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp", "tp"}, {}]>, dist.global = tensor<13x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["dp", "tp"] pairs [[0, 0], [1, 2], [2, 1], [3, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = dist.permute %0 axes ["dp", "tp"] pairs [[0, 0], [1, 2], [2, 1], [3, 3]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----

// Around the ring in two steps of three, which is not home.
// CHECK-LABEL: func.func @permute_onward
// CHECK-COUNT-3: dist.permute
dist.mesh @mesh = <["tp"=4]>
func.func @permute_onward(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = dist.permute %0 axes ["tp"] shift 3 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = dist.permute %1 axes ["tp"] shift 2 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2 : tensor<4x8xf32>
}

// -----

// CHECK-LABEL: func.func @redistribute_there_and_back
// CHECK-NOT: = dist.
// CHECK: return %arg0
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @redistribute_there_and_back(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{"dp"}, {}]>] to [#dist.sharding<@mesh, [{}, {"tp"}]>] : (tensor<4x8xf32>) -> tensor<8x2xf32>
  %1 = dist.redistribute %0 from [#dist.sharding<@mesh, [{}, {"tp"}]>] to [#dist.sharding<@mesh, [{"dp"}, {}]>] : (tensor<8x2xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----

// A launch folds if each of its tensors does. They may come from several launches.
// CHECK-LABEL: func.func @launches
// CHECK: %[[SHARD:.*]] = dist.slice %arg0
// CHECK-NEXT: %[[BOTH:.*]]:2 = dist.all_gather %[[SHARD]], %arg2
// CHECK-NEXT: return %arg1, %arg0, %[[BOTH]]#0, %[[BOTH]]#1
dist.mesh @mesh = <["tp"=4]>
func.func @launches(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
    %y: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
    %z: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x16xf32>},
        tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0:2 = dist.slice %x, %y axes ["tp"] dims [0, 1] : (tensor<16x8xf32>, tensor<8x16xf32>) -> (tensor<4x8xf32>, tensor<8x4xf32>)
  %1:2 = dist.all_gather %0#1, %0#0 axes ["tp"] dims [1, 0] : (tensor<8x4xf32>, tensor<4x8xf32>) -> (tensor<8x16xf32>, tensor<16x8xf32>)
  %2 = dist.slice %x axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %3:2 = dist.all_gather %2, %z axes ["tp"] dims [0, 0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> (tensor<16x8xf32>, tensor<16x8xf32>)
  return %1#0, %1#1, %3#0, %3#1 : tensor<8x16xf32>, tensor<16x8xf32>, tensor<16x8xf32>, tensor<16x8xf32>
}

// -----

// A sum is no move.
// CHECK-LABEL: func.func @gather_of_reduce_scatter
// CHECK: dist.reduce_scatter
// CHECK: dist.all_gather
dist.mesh @mesh = <["tp"=4]>
func.func @gather_of_reduce_scatter(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.reduce_scatter sum %x axes ["tp"] dims [0] : (tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = dist.all_gather %0 axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}

// -----

// x + 0 is not x where x is a negative zero.
// CHECK-LABEL: func.func @sum_of_partial
// CHECK: dist.partial
// CHECK: dist.all_reduce
dist.mesh @mesh = <["tp"=4]>
func.func @sum_of_partial(
    %x: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.partial %x axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<16x8xf32>) -> tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}
