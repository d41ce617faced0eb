// RUN: sharding-opt %s --annotate-context-parallel="ulysses=ulysses" | FileCheck %s
// RUN: sharding-opt %s --parallelize="context-parallel={ulysses=ulysses}" | FileCheck %s --check-prefix=SPMD
// RUN: not sharding-opt %s --annotate-context-parallel="ulysses=cp" 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not sharding-opt %s --parallelize="context-parallel={order=spiral}" 2>&1 | FileCheck %s --check-prefix=ORDER
// RUN: not sharding-opt %s --parallelize="context-parallel={ulysses=a ring=a}" 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not sharding-opt %s --annotate-context-parallel="ulysses=ulysses ring=ulysses" 2>&1 | FileCheck %s --check-prefix=SAME
// RUN: sharding-opt %s --parallelize="context-parallel={ulysses=auto order=auto} device={h100 flops_f32=1e6}" | FileCheck %s --check-prefix=SPMD
// RUN: not sharding-opt %s --annotate-context-parallel="ulysses=auto" 2>&1 | FileCheck %s --check-prefix=CHOSEN
// RUN: sharding-opt %s --declare-mesh="roles=ulysses=ulysses" --annotate-context-parallel="ulysses=auto ring=auto" | FileCheck %s

// CHOSEN: error: ulysses=auto: expected an axis, or choose-context-parallel before
// AXIS: error: 'dist.mesh' op has no axis "cp" for Ulysses attention: expected one of "ulysses"
// ORDER: context-parallel: cannot read 'order=spiral': expected ulysses=axis, ring=axis, order=contiguous, zigzag, striped or auto
// SAME: annotate-context-parallel: expected two axes for ulysses and ring, got 'ulysses' for both
// TWICE: context-parallel: expected two axes for ulysses and ring, got 'a' for both

// The sequence is sharded from the inputs on; heads take the axis while attention
// runs. A value that only masks keys is needed whole by every rank.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %{{.*}}: tensor<1x8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"ulysses"}, {}]>
// CHECK-SAME: tensor<1x8xi1> {nn.input = "mask"}
// CHECK-COUNT-3: dist.constrain {{.*}} <@mesh, [{}, {"ulysses"}, {}, {}]>
// CHECK: nn.attention {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"ulysses"}, {}, {}]>
// CHECK-NEXT: dist.constrain {{.*}} <@mesh, [{}, {}, {"ulysses"}, {}]>

// One launch there, one back, nothing gathered.
// SPMD-LABEL: func.func @main
// SPMD-SAME: -> (tensor<1x4x16xf32> {dist.global = tensor<1x8x16xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"ulysses"}, {}]>
// SPMD-NOT: all_gather
// SPMD: dist.all_to_all %{{.*}}, %{{.*}} axes ["ulysses"] from [2, 2] to [1, 1]
// SPMD: nn.attention {{.*}} -> tensor<1x2x8x4xf32>
// SPMD: dist.all_to_all %{{.*}} axes ["ulysses"] from [1] to [2]
// SPMD-NOT: all_gather
// SPMD: return
dist.mesh @mesh = <["ulysses"=2]>
func.func @main(%x: tensor<1x8x16xf32> {nn.input = "x"}, %mask: tensor<1x8xi1> {nn.input = "mask"},
    %wq: tensor<16x16xf32> {nn.parameter = "q"}, %wk: tensor<8x16xf32> {nn.parameter = "k"})
    -> (tensor<1x8x16xf32> {nn.output = "y"}) {
  %q = nn.linear %x, %wq : (tensor<1x8x16xf32>, tensor<16x16xf32>) -> tensor<1x8x16xf32>
  %k = nn.linear %x, %wk : (tensor<1x8x16xf32>, tensor<8x16xf32>) -> tensor<1x8x8xf32>
  %q1 = nn.reshape %q : (tensor<1x8x16xf32>) -> tensor<1x8x4x4xf32>
  %q2 = nn.transpose %q1 [0, 2, 1, 3] : (tensor<1x8x4x4xf32>) -> tensor<1x4x8x4xf32>
  %k1 = nn.reshape %k : (tensor<1x8x8xf32>) -> tensor<1x8x2x4xf32>
  %k2 = nn.transpose %k1 [0, 2, 1, 3] : (tensor<1x8x2x4xf32>) -> tensor<1x2x8x4xf32>
  %o = nn.attention %q2, %k2, %k2 key_padding %mask scale 0.5 {causal} : (tensor<1x4x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x2x8x4xf32>, tensor<1x8xi1>) -> tensor<1x4x8x4xf32>
  %o1 = nn.transpose %o [0, 2, 1, 3] : (tensor<1x4x8x4xf32>) -> tensor<1x8x4x4xf32>
  %y = nn.reshape %o1 : (tensor<1x8x4x4xf32>) -> tensor<1x8x16xf32>
  return %y : tensor<1x8x16xf32>
}
