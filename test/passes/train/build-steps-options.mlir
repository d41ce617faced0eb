// RUN: not sharding-opt %s --build-steps="optimizer=lion" 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not sharding-opt %s --build-steps="optimizer=adam beta2=1" 2>&1 | FileCheck %s --check-prefix=BETA
// RUN: not sharding-opt %s --build-steps="lr=-1" 2>&1 | FileCheck %s --check-prefix=RATE
// NAME: error: there is no optimizer 'lion': expected sgd, adam or adamw
// BETA: error: beta2: expected a number from 0 on, below 1, got 1.000000
// RATE: error: lr: expected a number from 0 on, got -1.000000

func.func @main(%w: tensor<f32> {nn.parameter = "w"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<f32> {nn.output = "grad.w"}) {
  %0 = nn.mul %w, %w : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %1 = nn.gradient %0 of "w" : (tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}
