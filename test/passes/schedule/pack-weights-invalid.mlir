// RUN: sharding-opt %s --pack-weights="target=cpu:z80" -verify-diagnostics -o %t
// RUN: sharding-opt %s --form-kernels="target=cpu:z80" -verify-diagnostics -o %t

// expected-error@+1 {{target 'cpu:z80': unknown processor 'z80' for}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
