// RUN: sharding-opt %s --split-input-file --verify-diagnostics --report-communication

// expected-error@+1 {{report on communication: expected an SPMD function, one with 'dist.spmd', got none}}
module {
  func.func @main(%x: tensor<2xf32> {nn.input = "x"}) -> (tensor<2xf32> {nn.output = "y"}) {
    return %x : tensor<2xf32>
  }
}
