// RUN: sharding-opt %s --parallelize="mesh=tp=1" --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --parallelize="mesh=tp=4 sequence-parallel=on" | FileCheck %s --check-prefix=FOUR

// Padding is masked on one rank, too. A softmax over it leaves it out of its maximum and sum.
// CHECK-LABEL: @main
// CHECK-SAME: #dist.sharding<@mesh, [{} size @tokens, {}]>
// CHECK: %[[AT:.*]] = dist.positions <24 size @tokens> of %{{.*}} : tensor<i64> : tensor<24xi64>
// CHECK: %[[TRUE:.*]] = nn.compare ge %[[AT]]
// CHECK: nn.select
// CHECK: nn.reduce max
// CHECK: nn.select
// CHECK: nn.reduce sum

// FOUR-LABEL: @main
// FOUR: dist.positions <24 size @tokens{{.*}}> of
func.func @main(%x: tensor<24x8xf32> {nn.input = "x", nn.sizes = ["tokens", ""]},
                %w: tensor<16x8xf32> {nn.parameter = "w"}, %v: tensor<8x16xf32> {nn.parameter = "v"},
                %n: tensor<i64> {nn.input = "n", nn.size = "tokens"}) -> tensor<24x8xf32> {
  %0 = nn.linear %x, %w : (tensor<24x8xf32>, tensor<16x8xf32>) -> tensor<24x16xf32>
  %1 = nn.linear %0, %v : (tensor<24x16xf32>, tensor<8x16xf32>) -> tensor<24x8xf32>
  %2 = nn.softmax %1 dim 0 : tensor<24x8xf32>
  return %2 : tensor<24x8xf32>
}
