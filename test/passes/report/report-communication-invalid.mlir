// RUN: sharding-opt %s --split-input-file --verify-diagnostics --report-communication

// expected-error@+1 {{report on communication: expected an SPMD function, one with 'dist.spmd'; there is none}}
module {
  func.func @main(%x: tensor<2xf32> {nn.input = "x"}) -> (tensor<2xf32> {nn.output = "y"}) {
    return %x : tensor<2xf32>
  }
}

// -----

// expected-error@+1 {{report on communication: expected one SPMD function, or one named 'main'; there are 2}}
module {
  dist.mesh @mesh = <["tp"=2]>
  // expected-note@+1 {{'a'}}
  func.func @a() attributes {dist.spmd = @mesh} {
    return
  }
  // expected-note@+1 {{'b'}}
  func.func @b() attributes {dist.spmd = @mesh} {
    return
  }
}
