// RUN: sharding-opt %s --form-kernels -split-input-file -verify-diagnostics -o %t

// expected-error@+1 {{argument 0 of 'scalar': expected a tensor of static shape, got 'f32'}}
func.func @scalar(%x: f32) -> f32 {
  return %x : f32
}

// -----

func.func @index(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{has a result of type 'i1', which cannot be compiled}}
  %c = arith.constant true
  %0 = scf.if %c -> tensor<4xf32> {
    scf.yield %x : tensor<4xf32>
  } else {
    scf.yield %x : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}

// -----

// expected-error@+1 {{argument 0 of 'long': expected at most 2^45 elements, got 'tensor<70368744177664xf32>'}}
func.func @long(%x: tensor<70368744177664xf32>) -> tensor<70368744177664xf32> {
  return %x : tensor<70368744177664xf32>
}

// -----

func.func @wide() -> tensor<f32> {
  // expected-error@+1 {{expected a result of at most 2^45 elements, got 'tensor<4294967296x4294967296x4xf32>'}}
  %0 = nn.constant dense<1.0> : tensor<4294967296x4294967296x4xf32>
  %1 = nn.reduce sum %0 dims [0, 1, 2] : (tensor<4294967296x4294967296x4xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

nn.state @s : tensor<4xf32>
func.func @unbound() -> tensor<4xf32> {
  // expected-error@+1 {{names a state: expected '--bind-state' to have run}}
  %0 = nn.read @s : tensor<4xf32>
  return %0 : tensor<4xf32>
}
