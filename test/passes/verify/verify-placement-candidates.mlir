// RUN: sharding-opt %s --verify-placement --split-input-file | sharding-opt --split-input-file | FileCheck %s

// All local dimensions but the features are 1, so that nearly every value may be read in
// several ways, and layers share a mask: what each two uses agree on does not fit all.
// CHECK-LABEL: func.func @main
dist.mesh @mesh = <["dp"=2, "u"=2]>
func.func @main(
    %arg0: tensor<1x1xi64> {dist.global = tensor<2x2xi64>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"u"}]>},
    %arg1: tensor<1x2xi64> {dist.global = tensor<2x2xi64>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
    %arg2: tensor<8x8xf32> {dist.global = tensor<8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg3: tensor<8xf32> {dist.global = tensor<8xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg4: tensor<8x8xf32> {dist.global = tensor<8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg5: tensor<8x8xf32> {dist.global = tensor<8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg6: tensor<8xf32> {dist.global = tensor<8xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg7: tensor<8x8xf32> {dist.global = tensor<8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg8: tensor<8xf32> {dist.global = tensor<8xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg9: tensor<8xf32> {dist.global = tensor<8xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg10: tensor<8xf32> {dist.global = tensor<8xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg11: tensor<16x8xf32> {dist.global = tensor<16x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg12: tensor<16xf32> {dist.global = tensor<16xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg13: tensor<8x16xf32> {dist.global = tensor<8x16xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg14: tensor<8xf32> {dist.global = tensor<8xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>},
    %arg15: tensor<50x8xf32> {dist.global = tensor<50x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}]>},
    %arg16: tensor<1x8xf32> {dist.global = tensor<2x8xf32>, dist.sharding = #dist.sharding<@mesh, [{"u"}, {}]>})
    -> (tensor<1x8xf32> {dist.global = tensor<2x8xf32>, dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>})
    attributes {dist.spmd = @mesh, rt.overlap = "off"} {
  %0 = nn.embedding %arg0, %arg15 : (tensor<1x1xi64>, tensor<50x8xf32>) -> tensor<1x1x8xf32>
  %1 = nn.reshape %arg16 : (tensor<1x8xf32>) -> tensor<1x1x8xf32>
  %2 = nn.add %0, %1 : (tensor<1x1x8xf32>, tensor<1x1x8xf32>) -> tensor<1x1x8xf32>
  %3 = nn.layer_norm %2 weight %arg9 bias %arg10 eps 1.000000e-05 : (tensor<1x1x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %4 = nn.linear %3, %arg2 bias %arg3 : (tensor<1x1x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %5 = nn.reshape %4 : (tensor<1x1x8xf32>) -> tensor<1x1x1x8xf32>
  %6 = nn.linear %3, %arg4 : (tensor<1x1x8xf32>, tensor<8x8xf32>) -> tensor<1x1x8xf32>
  %7 = nn.reshape %6 : (tensor<1x1x8xf32>) -> tensor<1x1x1x8xf32>
  %8 = nn.linear %3, %arg5 bias %arg6 : (tensor<1x1x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %9 = nn.reshape %8 : (tensor<1x1x8xf32>) -> tensor<1x1x1x8xf32>
  %10 = nn.reshape %arg1 : (tensor<1x2xi64>) -> tensor<1x1x2x1xi64>
  %11 = nn.reshape %arg1 : (tensor<1x2xi64>) -> tensor<1x1x1x2xi64>
  %12 = nn.compare  eq %10, %11 : (tensor<1x1x2x1xi64>, tensor<1x1x1x2xi64>) -> tensor<1x1x2x2xi1>
  %13 = nn.constant dense<0.000000e+00> : tensor<f32>
  %14 = nn.constant dense<0xFF800000> : tensor<f32>
  %15 = nn.select %12, %13, %14 : (tensor<1x1x2x2xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x2x2xf32>
  %16:3 = dist.all_gather %5, %7, %9 axes ["u"] dims [2, 2, 2] : (tensor<1x1x1x8xf32>, tensor<1x1x1x8xf32>, tensor<1x1x1x8xf32>) -> (tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>)
  %result = nn.attention %16#0, %16#1, %16#2 bias %15 scale 0.35355339059327373 {causal} : (tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>, tensor<1x1x2x2xf32>) -> tensor<1x1x2x8xf32>
  %17 = dist.slice %result axes ["u"] dims [2] : (tensor<1x1x2x8xf32>) -> tensor<1x1x1x8xf32>
  %18 = nn.reshape %17 : (tensor<1x1x1x8xf32>) -> tensor<1x1x8xf32>
  %19 = nn.linear %18, %arg7 bias %arg8 : (tensor<1x1x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %20 = nn.add %2, %19 : (tensor<1x1x8xf32>, tensor<1x1x8xf32>) -> tensor<1x1x8xf32>
  %21 = nn.layer_norm %20 weight %arg9 bias %arg10 eps 1.000000e-05 : (tensor<1x1x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %22 = nn.linear %21, %arg11 bias %arg12 : (tensor<1x1x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<1x1x16xf32>
  %23 = nn.gelu %22 : tensor<1x1x16xf32>
  %24 = nn.linear %23, %arg13 bias %arg14 : (tensor<1x1x16xf32>, tensor<8x16xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %25 = nn.add %20, %24 : (tensor<1x1x8xf32>, tensor<1x1x8xf32>) -> tensor<1x1x8xf32>
  %26 = nn.layer_norm %25 weight %arg9 bias %arg10 eps 1.000000e-05 : (tensor<1x1x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %27 = nn.linear %26, %arg2 bias %arg3 : (tensor<1x1x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %28 = nn.reshape %27 : (tensor<1x1x8xf32>) -> tensor<1x1x1x8xf32>
  %29 = nn.linear %26, %arg4 : (tensor<1x1x8xf32>, tensor<8x8xf32>) -> tensor<1x1x8xf32>
  %30 = nn.reshape %29 : (tensor<1x1x8xf32>) -> tensor<1x1x1x8xf32>
  %31 = nn.linear %26, %arg5 bias %arg6 : (tensor<1x1x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %32 = nn.reshape %31 : (tensor<1x1x8xf32>) -> tensor<1x1x1x8xf32>
  %33 = nn.constant dense<0.000000e+00> : tensor<f32>
  %34 = nn.constant dense<0xFF800000> : tensor<f32>
  %35 = nn.select %12, %33, %34 : (tensor<1x1x2x2xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x2x2xf32>
  %36:3 = dist.all_gather %28, %30, %32 axes ["u"] dims [2, 2, 2] : (tensor<1x1x1x8xf32>, tensor<1x1x1x8xf32>, tensor<1x1x1x8xf32>) -> (tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>)
  %result_0 = nn.attention %36#0, %36#1, %36#2 bias %35 scale 0.35355339059327373 {causal} : (tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>, tensor<1x1x2x8xf32>, tensor<1x1x2x2xf32>) -> tensor<1x1x2x8xf32>
  %37 = dist.slice %result_0 axes ["u"] dims [2] : (tensor<1x1x2x8xf32>) -> tensor<1x1x1x8xf32>
  %38 = nn.reshape %37 : (tensor<1x1x1x8xf32>) -> tensor<1x1x8xf32>
  %39 = nn.linear %38, %arg7 bias %arg8 : (tensor<1x1x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %40 = nn.add %25, %39 : (tensor<1x1x8xf32>, tensor<1x1x8xf32>) -> tensor<1x1x8xf32>
  %41 = nn.layer_norm %40 weight %arg9 bias %arg10 eps 1.000000e-05 : (tensor<1x1x8xf32>, tensor<8xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %42 = nn.linear %41, %arg11 bias %arg12 : (tensor<1x1x8xf32>, tensor<16x8xf32>, tensor<16xf32>) -> tensor<1x1x16xf32>
  %43 = nn.gelu %42 : tensor<1x1x16xf32>
  %44 = nn.linear %43, %arg13 bias %arg14 : (tensor<1x1x16xf32>, tensor<8x16xf32>, tensor<8xf32>) -> tensor<1x1x8xf32>
  %45 = nn.add %40, %44 : (tensor<1x1x8xf32>, tensor<1x1x8xf32>) -> tensor<1x1x8xf32>
  %46 = dist.all_gather %45 axes ["u"] dims [1] : (tensor<1x1x8xf32>) -> tensor<1x2x8xf32>
  %47 = nn.reduce  mean %46 dims [1] : (tensor<1x2x8xf32>) -> tensor<1x8xf32>
  return %47 : tensor<1x8xf32>
}

// -----

// The constant is a part of a value that a part of the axis shards, as its sum states.
dist.mesh @mesh = <["x"=4]>
// CHECK-LABEL: func.func @sum_over_part
func.func @sum_over_part()
    -> (tensor<f32> {nn.output = "y", dist.global = tensor<f32>, dist.sharding = #dist.sharding<@mesh, []>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.constant dense<1.0> : tensor<5xf32>
  %1 = nn.reduce sum %0 dims [0] {dist.operands = [#dist.sharding<@mesh, [(10{"x":(1)2})]>]} : (tensor<5xf32>) -> tensor<f32>
  %2 = dist.all_reduce sum %1 axes ["x":(1)2] : (tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// -----

// A collective moves its operands one by one: each of many may be read in either way.
dist.mesh @mesh = <["dp"=2, "tp"=2]>
// CHECK-LABEL: func.func @many_operands
func.func @many_operands(%a0: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a1: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a2: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a3: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a4: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a5: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a6: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a7: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a8: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>}, %a9: tensor<1x4xf32> {dist.global = tensor<2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"dp"}>})
    -> (tensor<1x1x4xf32> {dist.global = tensor<2x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<1x2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<2x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<1x2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<2x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<1x2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<2x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<1x2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<2x1x4xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>}, tensor<1x1x4xf32> {dist.global = tensor<1x2x4xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>})
    attributes {dist.spmd = @mesh} {
  %r0 = nn.reshape %a0 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r1 = nn.reshape %a1 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r2 = nn.reshape %a2 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r3 = nn.reshape %a3 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r4 = nn.reshape %a4 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r5 = nn.reshape %a5 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r6 = nn.reshape %a6 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r7 = nn.reshape %a7 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r8 = nn.reshape %a8 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %r9 = nn.reshape %a9 : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
  %all:10 = dist.all_reduce sum %r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9 axes ["dp"] : (tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>) -> (tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>)
  return %all#0, %all#1, %all#2, %all#3, %all#4, %all#5, %all#6, %all#7, %all#8, %all#9 : tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>, tensor<1x1x4xf32>
}

// -----

// A single equal element beside the heads is that element alone.
dist.mesh @mesh = <["tp"=2]>
// CHECK-LABEL: func.func @equal_element
func.func @equal_element(%x: tensor<2x12xf32> {dist.global = tensor<3x12xf32>, dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<36xf32> {dist.global = tensor<36xf32>, dist.sharding = #dist.sharding<@mesh, [{}]>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.constant dense<2.0> : tensor<1x1xf32>
  %1 = nn.reshape %x : (tensor<2x12xf32>) -> tensor<2x1x12xf32>
  %2 = nn.mul %1, %0 : (tensor<2x1x12xf32>, tensor<1x1xf32>) -> tensor<2x1x12xf32>
  %3 = nn.reshape %2 : (tensor<2x1x12xf32>) -> tensor<24xf32>
  %4 = dist.redistribute %3 from [#dist.sharding<@mesh, [{"tp"}]>] to [#dist.sharding<@mesh, [{}]>] : (tensor<24xf32>) -> tensor<48xf32>
  %5 = nn.slice %4 starts [0] limits [36] strides [1] : (tensor<48xf32>) -> tensor<36xf32>
  return %5 : tensor<36xf32>
}

// -----

// Positions are known beside an equal element of the rows of dropout, and keys are the same before
// and after an order.
dist.mesh @mesh = <["ring"=2]>
// CHECK-LABEL: func.func @dropout_around_ring
func.func @dropout_around_ring(%q: tensor<1x2x4x8xf32> {dist.global = tensor<1x2x8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>}, %seed: tensor<i64> {dist.global = tensor<i64>, dist.sharding = #dist.sharding<@mesh, []>})
    -> (tensor<1x2x4x8xf32> {dist.global = tensor<1x2x8x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>})
    attributes {dist.spmd = @mesh} {
  %heads = nn.iota dim 1 : tensor<1x2x1x1xi64>
  %tokens = nn.iota dim 2 : tensor<1x1x8x1xi64>
  %sum = nn.add %heads, %tokens : (tensor<1x2x1x1xi64>, tensor<1x1x8x1xi64>) -> tensor<1x2x8x1xi64>
  %flat = nn.reshape %sum : (tensor<1x2x8x1xi64>) -> tensor<1x2x8xi64>
  %rows = dist.slice %flat axes ["ring"] dims [2] : (tensor<1x2x8xi64>) -> tensor<1x2x4xi64>
  %all = nn.iota dim 0 : tensor<8xi64>
  %own = dist.positions <8{"ring"}> : tensor<4xi64>
  %0 = dist.slice %all axes ["ring"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %out, %lse = nn.attention %q, %q, %q positions %own, %own drop_at %rows, %0 seed %seed step %seed scale 5.000000e-01 {causal, dropout = 1.000000e-01 : f64, stream = 0 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %late = dist.after %q, %lse : tensor<1x2x4x8xf32>, tensor<1x2x4xf32>
  %1:2 = dist.permute %late, %q axes ["ring"] pairs [[0, 1]] : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %next = dist.positions <8{"ring"}> shift 1 : tensor<4xi64>
  %2 = dist.slice %all axes ["ring"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
  %out_0, %lse_1 = nn.attention %q, %1#0, %1#1 positions %own, %next drop_at %rows, %2 seed %seed step %seed scale 5.000000e-01 {causal, dropout = 1.000000e-01 : f64, stream = 0 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>, tensor<1x2x4xi64>, tensor<4xi64>, tensor<i64>, tensor<i64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %out_2, %lse_3 = nn.merge_attention %out, %lse, %out_0, %lse_1 : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %out_2 : tensor<1x2x4x8xf32>
}
