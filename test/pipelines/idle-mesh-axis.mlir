// RUN: sharding-opt %s --parallelize="mesh=dp=2,tpp=4" -o /dev/null 2>&1 | FileCheck %s --check-prefix=TYPO
// RUN: sharding-opt %s --parallelize="mesh=dp=2,x=4 data-parallel=x tensor-parallel=dp" -o /dev/null 2>&1 | FileCheck %s --check-prefix=RULE --allow-empty
// RUN: sharding-opt %s --parallelize="mesh=dp=2,x=4,one=1 shardings={\"w\": \"[{\\\"x\\\"}, {}]\"}" -o /dev/null 2>&1 | FileCheck %s --check-prefix=RULE --allow-empty
// RUN: sharding-opt %s --parallelize="mesh=dp=2,tp=4" -o /dev/null 2>&1 | FileCheck %s --check-prefix=RULE --allow-empty

// A mistyped axis does not pass unseen, wherever the mesh comes from; one that a rule
// or a policy uses gives no warning, nor does an axis of one rank.

// TYPO: idle-mesh-axis.mlir: warning: mesh axis "tpp" of size 4 shards nothing: all ranks along it do the same work; policies look for "dp", "tp", "gtp", "ep" and the axes that data-parallel, tensor-parallel, gtp, expert-parallel and context-parallel name
// RULE-NOT: warning
func.func @main(%x: tensor<8x4xf32> {nn.input = "x"}, %w: tensor<16x4xf32> {nn.parameter = "w"},
                %v: tensor<4x16xf32> {nn.parameter = "v"}) -> (tensor<8x4xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
  %1 = nn.relu %0 : tensor<8x16xf32>
  %2 = nn.linear %1, %v : (tensor<8x16xf32>, tensor<4x16xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}
