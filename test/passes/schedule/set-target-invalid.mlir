// RUN: sharding-opt %s --set-target=target=gpu:sm_90a -split-input-file -verify-diagnostics -o %t

// expected-error@+1 {{target 'gpu:sm_90a' is not supported yet: expected cpu, or cpu: and a processor's name, as in cpu:x86-64-v3}}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
