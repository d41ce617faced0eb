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

// The constant may be part of a value that a part of the axis shards, so its sum may be
// unreduced over that part.
dist.mesh @mesh = <["x"=4]>
// CHECK-LABEL: func.func @sum_over_part
func.func @sum_over_part()
    -> (tensor<f32> {nn.output = "y", dist.global = tensor<f32>, dist.sharding = #dist.sharding<@mesh, []>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.constant dense<1.0> : tensor<5xf32>
  %1 = nn.reduce sum %0 dims [0] : (tensor<5xf32>) -> tensor<f32>
  %2 = dist.all_reduce sum %1 axes ["x":(1)2] : (tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
