// RUN: sharding-opt %s --verify-placement
// RUN: sharding-opt %s --verify-roundtrip -o /dev/null

// A permute that relabels its chunks makes another value with the operand's layout.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @shifted(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["tp"] shift 1 {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = nn.add %0, %x : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// A rank that receives nothing has zeros, as the value says.
func.func @left_out(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["tp"] pairs [[0, 1], [1, 2], [2, 3]] {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// A sum over other axes goes through.
func.func @sum(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>, dist.global = tensor<8x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["tp"] pairs [[0, 3], [1, 2], [2, 1], [3, 0]] {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = dist.all_reduce sum %0 axes ["dp"] : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// Ranks along "dp" have the same chunk, and receive equal ones.
func.func @both_axes(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.permute %x axes ["dp", "tp"] pairs [[0, 5], [1, 6], [2, 7], [3, 4], [4, 1], [5, 2], [6, 3], [7, 0]] {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
