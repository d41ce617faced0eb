// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64" --pack-weights="target=cpu:x86-64-v4" -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64" --pack-weights="target=cpu:haswell" -split-input-file | FileCheck %s --check-prefix=AVX2
// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64" --pack-weights="target=cpu:x86-64" -split-input-file | FileCheck %s --check-prefix=NONE

// A parameter that two products read is packed once, in either orientation;
// other ops read the stored weight.
// CHECK-LABEL: func.func @two_products
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32> {{.*}}, %[[V:.*]]: tensor<16x8xbf16>
// CHECK-DAG: %[[PW:.*]] = rt.prepare %[[W]] <k = 8, n = 16, transposed = true, panel = 32> at load : tensor<16x8xf32>
// CHECK-DAG: %[[PV:.*]] = rt.prepare %[[V]] <k = 16, n = 8, panel = 32, group = 2> at load : tensor<16x8xbf16>
// CHECK: rt.kernel %[[X]], %[[PW]] :
// CHECK: rt.kernel %{{.*}}, %[[PV]] :
// CHECK: rt.kernel %[[W]] :
// CHECK: rt.kernel %{{.*}}, %[[PW]] :
// AVX2-LABEL: func.func @two_products
// AVX2-DAG: rt.prepare %{{.*}} <k = 8, n = 16, transposed = true, panel = 16> at load
// AVX2-DAG: rt.prepare %{{.*}} <k = 16, n = 8, panel = 16, group = 2> at load
// Without fused multiply-add there is no kernel.
// NONE-LABEL: func.func @two_products
// NONE-NOT: rt.prepare
func.func @two_products(%x: tensor<4x8xf32> {nn.input = "x"},
                %w: tensor<16x8xf32> {nn.parameter = "w"},
                %v: tensor<16x8xbf16> {nn.parameter = "v"})
    -> (tensor<4x8xbf16>, tensor<16x8xf32>, tensor<4x16xf32>) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.cast %0 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  %2 = nn.linear %1, %v {in_out} : (tensor<4x16xbf16>, tensor<16x8xbf16>) -> tensor<4x8xbf16>
  %3 = nn.exp %w : tensor<16x8xf32>
  %4 = nn.cast %2 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %5 = nn.linear %4, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %2, %3, %5 : tensor<4x8xbf16>, tensor<16x8xf32>, tensor<4x16xf32>
}

// -----

// Not what is computed, nor other types.
// CHECK-LABEL: func.func @computed_or_other_types
// CHECK-NOT: rt.prepare
func.func @computed_or_other_types(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.input = "w"},
                %y: tensor<4x8xf64> {nn.input = "y"}, %v: tensor<16x8xf64> {nn.parameter = "v"})
    -> (tensor<4x16xf32>, tensor<4x16xf64>) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.linear %y, %v : (tensor<4x8xf64>, tensor<16x8xf64>) -> tensor<4x16xf64>
  return %0, %1 : tensor<4x16xf32>, tensor<4x16xf64>
}

// -----

// Parts of a parameter that are in one piece are views: they are packed by
// themselves, and a bias is read in place. Kernels read other parts by themselves.
// CHECK-LABEL: func.func @parts_of_a_parameter
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32> {{.*}}, %[[B:.*]]: tensor<16xf32>
// CHECK: %[[S:.*]] = nn.slice %[[W]] starts [4, 0] limits [12, 8]
// CHECK: %[[P:.*]] = rt.prepare %[[S]] <k = 8, n = 8, transposed = true, panel = 32> at load : tensor<8x8xf32>
// CHECK: %[[C:.*]] = nn.slice %[[B]] starts [4] limits [12]
// CHECK: rt.kernel %[[X]], %[[P]], %[[C]] :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.linear
// CHECK-NEXT: rt.yield
// CHECK: %[[D:.*]] = rt.kernel %[[W]] :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.slice {{.*}} starts [0, 0] limits [16, 4]
// CHECK: rt.kernel %{{.*}}, %[[D]] :
func.func @parts_of_a_parameter(%x: tensor<4x8xf32> {nn.input = "x"},
                %w: tensor<16x8xf32> {nn.parameter = "w"},
                %b: tensor<16xf32> {nn.parameter = "b"},
                %y: tensor<4x4xf32> {nn.input = "y"})
    -> (tensor<4x8xf32>, tensor<4x16xf32>) {
  %0 = nn.slice %w starts [4, 0] limits [12, 8] strides [1, 1] : (tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = nn.slice %b starts [4] limits [12] strides [1] : (tensor<16xf32>) -> tensor<8xf32>
  %2 = nn.linear %x, %0 bias %1 : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %3 = nn.slice %w starts [0, 0] limits [16, 4] strides [1, 1] : (tensor<16x8xf32>) -> tensor<16x4xf32>
  %4 = nn.linear %y, %3 : (tensor<4x4xf32>, tensor<16x4xf32>) -> tensor<4x16xf32>
  return %2, %4 : tensor<4x8xf32>, tensor<4x16xf32>
}

// -----

// A trained state is packed whenever it has another value. Other states are not.
// CHECK-LABEL: func.func @trained
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32> {nn.state = "w"}, %[[M:.*]]: tensor<16x8xf32>
// CHECK: %[[P:.*]] = rt.prepare %[[W]] <k = 8, n = 16, transposed = true, panel = 32> at update : tensor<16x8xf32>
// CHECK-NOT: rt.prepare
// CHECK: rt.kernel %[[X]], %[[P]] :
// CHECK: rt.kernel %[[X]], %[[M]] :
nn.state @w {role = "parameter"} : tensor<16x8xf32>
nn.state @m {role = "optimizer", fill = 0.0 : f32} : tensor<16x8xf32>
func.func @trained(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.state = "w"},
                   %m: tensor<16x8xf32> {nn.state = "m"})
    -> (tensor<4x16xf32>, tensor<4x16xf32>) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.linear %x, %m : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %0, %1 : tensor<4x16xf32>, tensor<4x16xf32>
}

// -----

// The call gives w another value: to pack it costs as much as the one product saves.
// CHECK-LABEL: func.func @updated_with_one_reader
// CHECK-NOT: rt.prepare
nn.state @w {role = "parameter"} : tensor<16x8xf32>
func.func @updated_with_one_reader(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.state = "w"})
    -> (tensor<4x16xf32>, tensor<16x8xf32> {nn.state = "w"}) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.neg %w : tensor<16x8xf32>
  return %0, %1 : tensor<4x16xf32>, tensor<16x8xf32>
}

// -----

// Two products save twice as much.
// CHECK-LABEL: func.func @updated_with_two_readers
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32>
// CHECK: %[[P:.*]] = rt.prepare %[[W]] <{{.*}}> at update
// CHECK: rt.kernel %[[X]], %[[P]] :
// CHECK: rt.kernel %{{.*}}, %[[P]] :
// CHECK: rt.kernel %[[W]] :
nn.state @w {role = "parameter"} : tensor<16x8xf32>
func.func @updated_with_two_readers(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.state = "w"})
    -> (tensor<4x16xf32>, tensor<4x16xf32>, tensor<16x8xf32> {nn.state = "w"}) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.exp %x : tensor<4x8xf32>
  %2 = nn.linear %1, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %3 = nn.neg %w : tensor<16x8xf32>
  return %0, %2, %3 : tensor<4x16xf32>, tensor<4x16xf32>, tensor<16x8xf32>
}

// -----

// A weight is packed at load and waits for nothing. Its readers wait by the packed weight.
// CHECK-LABEL: func.func @waits
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32>
// CHECK-NEXT: %[[P:.*]] = rt.prepare %[[W]] <k = 8, n = 16
// CHECK: %[[E:.*]] = rt.kernel %[[X]] :
// CHECK-NOT: dist.after %[[W]]
// CHECK: %[[A:.*]] = dist.after %[[P]], %[[E]] : tensor<16x8xf32>, tensor<4x8xf32>
// CHECK: rt.kernel %[[X]], %[[A]] :
func.func @waits(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.parameter = "w"})
    -> (tensor<4x8xf32>, tensor<4x16xf32>) {
  %0 = nn.exp %x : tensor<4x8xf32>
  %1 = dist.after %w, %0 : tensor<16x8xf32>, tensor<4x8xf32>
  %2 = nn.linear %x, %1 : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %0, %2 : tensor<4x8xf32>, tensor<4x16xf32>
}

// -----

// The weights of experts are packed one after the other, stored as n x k or as k x n. A type without kernels
// stays as it is.
// CHECK-LABEL: func.func @experts
// CHECK-SAME: %{{.*}}: tensor<6x1x8xf32> {{.*}}, %{{.*}}: tensor<4xi64> {{.*}}, %[[W:.*]]: tensor<3x40x8xf32> {{.*}}, %[[V:.*]]: tensor<3x8x40xf32> {{.*}}, %[[U:.*]]: tensor<3x40x8xf64>
// CHECK-DAG: %[[P:.*]] = rt.prepare %[[W]] <k = 8, n = 40, transposed = true, panel = 32, batch = 3> at load : tensor<3x40x8xf32>
// CHECK-DAG: %[[Q:.*]] = rt.prepare %[[V]] <k = 8, n = 40, panel = 32, batch = 3> at load : tensor<3x8x40xf32>
// CHECK: rt.kernel %{{.*}}, %[[P]], %{{.*}} :
// CHECK: rt.kernel %{{.*}}, %[[Q]], %{{.*}} :
// CHECK: rt.kernel %{{.*}}, %[[U]], %{{.*}} :
func.func @experts(%x: tensor<6x1x8xf32> {nn.input = "x"}, %o: tensor<4xi64> {nn.input = "o"},
                %w: tensor<3x40x8xf32> {nn.parameter = "w"}, %v: tensor<3x8x40xf32> {nn.parameter = "v"},
                %u: tensor<3x40x8xf64> {nn.parameter = "u"}, %y: tensor<6x1x8xf64> {nn.input = "y"})
    -> (tensor<6x1x40xf32>, tensor<6x1x40xf32>, tensor<6x1x40xf64>) {
  %0 = nn.grouped_product %x, %w, %o : (tensor<6x1x8xf32>, tensor<3x40x8xf32>, tensor<4xi64>) -> tensor<6x1x40xf32>
  %1 = nn.grouped_product %x, %v, %o {in_out} : (tensor<6x1x8xf32>, tensor<3x8x40xf32>, tensor<4xi64>) -> tensor<6x1x40xf32>
  %2 = nn.grouped_product %y, %u, %o : (tensor<6x1x8xf64>, tensor<3x40x8xf64>, tensor<4xi64>) -> tensor<6x1x40xf64>
  return %0, %1, %2 : tensor<6x1x40xf32>, tensor<6x1x40xf32>, tensor<6x1x40xf64>
}
