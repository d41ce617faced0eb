// RUN: sharding-opt %s --widen-sums='types={"*.up": own, "layers.*": f32, "head": f32}' --verify-diagnostics --remarks=applied | FileCheck %s

// The first rule that matches the name of a module wins. A rule that matches nothing is a warning.

// CHECK-LABEL: func.func @rules
// CHECK: nn.linear {{.*}} -> tensor<8x4xbf16>
// CHECK: nn.linear {{.*}} -> tensor<8x4xf32>
// expected-warning@+1 {{rule "head" of reduce-type matches no op}}
module {
dist.mesh @mesh = <["tp"=2]>
func.func @rules(
    %x: tensor<8x6xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x12xbf16>},
    %w: tensor<4x6xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x12xbf16>})
    -> (tensor<8x4xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x4xbf16>},
        tensor<8x4xbf16> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x4xbf16>})
    attributes {dist.spmd = @mesh} {
  %p = nn.linear %x, %w : (tensor<8x6xbf16>, tensor<4x6xbf16>) -> tensor<8x4xbf16> loc("layers.0.up")
  %s = dist.all_reduce sum %p axes ["tp"] : (tensor<8x4xbf16>) -> tensor<8x4xbf16>
  %q = nn.linear %x, %w : (tensor<8x6xbf16>, tensor<4x6xbf16>) -> tensor<8x4xbf16> loc("layers.0.down")
  // expected-remark@+1 {{partial sums are added in f32 and round once}}
  %t = dist.all_reduce sum %q axes ["tp"] : (tensor<8x4xbf16>) -> tensor<8x4xbf16>
  return %s, %t : tensor<8x4xbf16>, tensor<8x4xbf16>
}
}
