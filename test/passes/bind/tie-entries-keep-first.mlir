// RUN: sharding-opt %s --tie-entries="keep-first" --remarks=note 2>&1 | FileCheck %s

// Policies chose differently. The first place holds, and the log has the other one.

// CHECK: decode.py:4:1: remark: [tie-entries] note: parameter 'w' would be laid out as #dist.sharding<@mesh, [{}, {"tp"}]> here, but is as #dist.sharding<@mesh, [{"tp"}, {}]> in all functions, as in the first one
// CHECK-LABEL: func.func @decode
// CHECK-SAME: tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "w"}
dist.mesh @mesh = <["tp"=2]>
func.func @prefill(%w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>}) { return }
func.func @decode(%w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} loc("decode.py":4:1)) { return }
