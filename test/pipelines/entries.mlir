// RUN: sharding-opt %s --parallelize="mesh=dp=3,tp=5" --schedule | FileCheck %s --check-prefix=RT
// RUN: sharding-opt %s --parallelize="mesh=tp=5" --report-file=%t.json -o /dev/null
// RUN: FileCheck %s --input-file=%t.json --check-prefix=DECODE
// RUN: sharding-opt %s --parallelize="mesh=tp=5" --report-communication="entry=prefill file=%t.prefill.json" -o /dev/null
// RUN: FileCheck %s --input-file=%t.prefill.json --check-prefix=PREFILL

// Two entries over one set of weights and states. They have the same layouts in both, and the
// schedule makes launches of both. Reports describe the default entry unless another one is named.
// Weights and states count once, and also those of the other entry. So do the second buffers, which entries share.

// RT: nn.state @cache {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>
// RT: nn.state @n {dist.sharding = #dist.sharding<@mesh, []>
// RT: func.func @decode(
// RT-SAME: tensor<3x8xf32> {dist.global = tensor<12x8xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "u"}
// RT-SAME: tensor<1x3xf32> {dist.global = tensor<2x12xf32>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, nn.state = "cache"})
// RT-SAME: tensor<1x3xf32> {dist.global = tensor<2x12xf32>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, nn.state = "cache"})
// RT-SAME: rt.arena
// RT: func.func @prefill(
// RT-SAME: tensor<3x8xf32> {dist.global = tensor<12x8xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "u"}
// RT-SAME: tensor<i64> {dist.global = tensor<i64>, dist.sharding = #dist.sharding<@mesh, []>, nn.state = "n"})
// RT-SAME: tensor<1x3xf32> {dist.global = tensor<2x12xf32>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>, nn.state = "cache"}, tensor<i64>
// RT-SAME: rt.arena

// DECODE: "weights": 192
// DECODE: "state": 64
// PREFILL: "weights": 192
// PREFILL: "state": 64

nn.state @cache {fill = 0.0 : f32} : tensor<2x12xf32>
nn.state @n {fill = 0 : i64} : tensor<i64>
func.func @decode(%x: tensor<2x1x8xf32> {nn.input = "x"},
    %u: tensor<12x8xf32> {nn.parameter = "u"}, %d: tensor<8x12xf32> {nn.parameter = "d"}) -> (tensor<2x1x8xf32> {nn.output = "y"}) {
  %h = nn.linear %x, %u : (tensor<2x1x8xf32>, tensor<12x8xf32>) -> tensor<2x1x12xf32>
  %g = nn.gelu %h : tensor<2x1x12xf32>
  %c = nn.read @cache : tensor<2x12xf32>
  %c1 = nn.reshape %c : (tensor<2x12xf32>) -> tensor<2x1x12xf32>
  %s = nn.add %g, %c1 : (tensor<2x1x12xf32>, tensor<2x1x12xf32>) -> tensor<2x1x12xf32>
  %y = nn.linear %s, %d : (tensor<2x1x12xf32>, tensor<8x12xf32>) -> tensor<2x1x8xf32>
  %s1 = nn.reshape %s : (tensor<2x1x12xf32>) -> tensor<2x12xf32>
  nn.write @cache, %s1 : tensor<2x12xf32>
  return %y : tensor<2x1x8xf32>
}
func.func @prefill(%x: tensor<2x5x8xf32> {nn.input = "x"},
    %u: tensor<12x8xf32> {nn.parameter = "u"}, %d: tensor<8x12xf32> {nn.parameter = "d"}) -> (tensor<2x5x8xf32> {nn.output = "y"}) {
  %h = nn.linear %x, %u : (tensor<2x5x8xf32>, tensor<12x8xf32>) -> tensor<2x5x12xf32>
  %g = nn.gelu %h : tensor<2x5x12xf32>
  %y = nn.linear %g, %d : (tensor<2x5x12xf32>, tensor<8x12xf32>) -> tensor<2x5x8xf32>
  %m = nn.reduce mean %g dims [1] : (tensor<2x5x12xf32>) -> tensor<2x12xf32>
  nn.write @cache, %m : tensor<2x12xf32>
  %n = nn.read @n : tensor<i64>
  %five = nn.constant dense<5> : tensor<i64>
  %n1 = nn.add %n, %five : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @n, %n1 : tensor<i64>
  return %y : tensor<2x5x8xf32>
}
