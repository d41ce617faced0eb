// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

dist.mesh @mesh = <["tp"=2, "gtp"=2]>
// expected-note @below {{operand 0 is unreduced over {"tp"} from here on}}
func.func @replicated(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xf32>})
    -> (tensor<1x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"gtp"}, {}, {}]>, dist.global = tensor<2x4x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error @below {{takes parts of a sum over {"gtp"}, but operand 0 has layout [{}, {}] unreduced {"tp"}}}
  %0 = dist.parts %x axes ["gtp"] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
  return %0 : tensor<1x4x8xf32>
}

// -----

// A part of a maximum is no summand.
dist.mesh @mesh = <["tp"=2]>
func.func @maximum(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x16xf32>})
    -> (tensor<1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<2x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note @below {{operand 0 is unreduced over {"tp"} from here on}}
  %0 = nn.reduce max %x dims [1] : (tensor<4x8xf32>) -> tensor<4xf32>
  // expected-error @below {{reads operand 0, a maximum over {"tp"} that is not yet taken}}
  %1 = dist.parts %0 axes ["tp"] : (tensor<4xf32>) -> tensor<1x4xf32>
  return %1 : tensor<1x4xf32>
}

// -----

// To round the parts of a sum gives another sum, so a cast says if that is meant.
dist.mesh @mesh = <["tp"=2]>
// expected-note @below {{operand 0 is unreduced over {"tp"} from here on}}
func.func @narrow(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xf32>})
    -> (tensor<4x8xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xbf16>})
    attributes {dist.spmd = @mesh} {
  // expected-error @below {{is not linear in operand 0, which is unreduced over {"tp"}}}
  %0 = nn.cast %x : (tensor<4x8xf32>) -> tensor<4x8xbf16>
  return %0 : tensor<4x8xbf16>
}
