// RUN: sharding-opt %s --split-input-file --tie-entries | FileCheck %s
// RUN: sharding-opt %s --split-input-file --tie-entries="keep-first" | FileCheck %s

// The example of the pass. A part of a stored tensor is a value of its own.

// CHECK-LABEL: func.func @prefill
// CHECK-LABEL: func.func @decode
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "w"}
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<6x8xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 6, 0>}
dist.mesh @mesh = <["tp"=2]>
func.func @prefill(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) { return }
func.func @decode(%x: tensor<1x8xf32> {nn.input = "x"}, %w: tensor<6x8xf32> {nn.parameter = "w"},
                  %part: tensor<6x8xf32> {nn.parameter = "w", nn.parameter_offsets = array<i64: 6, 0>}) { return }

// -----

// All places of a state.

// CHECK: nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>}
// CHECK-LABEL: func.func @reads
// CHECK-SAME: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "s"}
// CHECK-LABEL: func.func @writes
// CHECK-SAME: -> (tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "s"})
dist.mesh @mesh = <["tp"=2]>
nn.state @s : tensor<4xf32>
func.func @reads(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>}) { return }
func.func @writes(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> {nn.state = "s"}) { return %x : tensor<4xf32> }
