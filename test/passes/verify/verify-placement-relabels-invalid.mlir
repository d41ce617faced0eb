// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// Ranks that hold the same chunk receive others.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-note@below {{operand 0 is from here, and has layout [{"tp"}, {}]}}
func.func @apart(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{makes another value of operand 0, which has layout [{"tp"}, {}]: expected ranks with the same chunk to receive equal ones}}
  %0 = dist.permute %x axes ["dp", "tp"] pairs [[0, 1], [1, 0], [2, 2], [3, 3], [4, 4], [5, 5], [6, 6], [7, 7]] {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// -----

// All ranks hold the value, of which one is left out.
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{operand 0 is from here, and has layout [{}, {}]}}
func.func @replicated(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{makes another value of operand 0}}
  %0 = dist.permute %x axes ["tp"] pairs [[0, 1]] {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// -----

// The parts of a sum would be added with other ones.
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{operand 0 is unreduced over {"tp"} from here on}}
func.func @sum(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{makes another value of operand 0}}
  %0 = dist.permute %x axes ["tp"] shift 1 {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  %1 = dist.all_reduce sum %0 axes ["tp"] : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %1 : tensor<2x8xf32>
}

// -----

// Padding would leave the tail.
dist.mesh @mesh = <["tp"=2]>
// expected-note@below {{operand 0 is from here, and has layout [{"tp"}, {}]}}
func.func @padded(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<3x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<3x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{makes another value of operand 0}}
  %0 = dist.permute %x axes ["tp"] shift 1 {dist.relabels} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @another_op(%x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>})
    -> (tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.relabels': expected a unit attribute on a dist.permute, got unit}}
  %0 = nn.exp %x {dist.relabels} : tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
