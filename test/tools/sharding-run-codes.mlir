// Two codes of a byte with scales of their own: blocks are columns of 32 rows.
// RUN: sharding-run %s --parallelize="mesh=dp=1" --random-weights=1 --random-inputs=2 --check
// RUN: sharding-run %s --parallelize="mesh=tp=2" --random-weights=1 --random-inputs=2 --check
// RUN: sharding-run %s --parallelize="mesh=tp=3" --random-weights=1 --random-inputs=2 --check
// RUN: sharding-run %s --parallelize="mesh=tp=3 stored-weights=widen" --random-weights=1 --random-inputs=2 --check
// RUN: not sharding-compile %s --parallelize="mesh=tp=2 stored-weights=widen" --without-weights -o %t.bundle 2>&1 | FileCheck %s
// CHECK: error: stored-weights=widen: a bundle without weights would have to widen them: expected a bundle with its weights, or stored-weights=keep
func.func @main(%x: tensor<4x64xf32> {nn.input = "x"}, %c: tensor<96x64xf4E2M1FN> {nn.parameter = "c"},
                %s: tensor<3x64xf8E8M0FNU> {nn.parameter = "s"}) -> (tensor<4x96xf32> {nn.output = "y"}) {
  %w = nn.dequantize %c, %s {block = [32, 1]} : (tensor<96x64xf4E2M1FN>, tensor<3x64xf8E8M0FNU>) -> tensor<96x64xf32>
  %y = nn.linear %x, %w : (tensor<4x64xf32>, tensor<96x64xf32>) -> tensor<4x96xf32>
  return %y : tensor<4x96xf32>
}
