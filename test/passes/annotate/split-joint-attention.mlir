// RUN: sharding-opt %s --split-joint-attention --split-input-file | FileCheck %s

// Keys, values and queries are joined of an image's and a prompt's: each part of the
// queries attends to each part of the keys, and readers of the result read its parts.
// CHECK-LABEL: @joint(
// CHECK-SAME: %[[IQ:[^:]+]]: tensor<1x2x6x8xf32>, %[[IK:[^:]+]]: tensor<1x2x6x8xf32>, %[[IV:[^:]+]]: tensor<1x2x6x8xf32>, %[[TQ:[^:]+]]: tensor<1x2x3x8xf32>, %[[TK:[^:]+]]: tensor<1x2x3x8xf32>, %[[TV:[^:]+]]: tensor<1x2x3x8xf32>)
// CHECK: %[[A:.*]], %[[LA:.*]] = nn.attention %[[IQ]], %[[IK]], %[[IV]] scale 5.000000e-01 :
// CHECK: %[[B:.*]], %[[LB:.*]] = nn.attention %[[IQ]], %[[TK]], %[[TV]] scale 5.000000e-01 {nn.whole_keys} :
// CHECK: %[[IO:.*]], %{{.*}} = nn.merge_attention %[[A]], %[[LA]], %[[B]], %[[LB]]
// CHECK: %[[C:.*]], %[[LC:.*]] = nn.attention %[[TQ]], %[[IK]], %[[IV]]
// CHECK: %[[D:.*]], %[[LD:.*]] = nn.attention %[[TQ]], %[[TK]], %[[TV]]
// CHECK: %[[TO:.*]], %{{.*}} = nn.merge_attention %[[C]], %[[LC]], %[[D]], %[[LD]]
// CHECK-NOT: nn.concat
// CHECK-DAG: %[[IT:.*]] = nn.transpose %[[IO]]
// CHECK-DAG: %[[TT:.*]] = nn.transpose %[[TO]]
// CHECK-DAG: %[[IR:.*]] = nn.reshape %[[IT]] : (tensor<1x6x2x8xf32>) -> tensor<1x6x16xf32>
// CHECK-DAG: %[[TR:.*]] = nn.reshape %[[TT]] : (tensor<1x3x2x8xf32>) -> tensor<1x3x16xf32>
// CHECK: return %[[IR]], %[[TR]]
func.func @joint(%iq: tensor<1x2x6x8xf32>, %ik: tensor<1x2x6x8xf32>, %iv: tensor<1x2x6x8xf32>,
                 %tq: tensor<1x2x3x8xf32>, %tk: tensor<1x2x3x8xf32>, %tv: tensor<1x2x3x8xf32>) -> (tensor<1x6x16xf32>, tensor<1x3x16xf32>) {
  %q = nn.concat %iq, %tq dim 2 : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
  %k = nn.concat %ik, %tk dim 2 : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
  %v = nn.concat %iv, %tv dim 2 : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
  %o = nn.attention %q, %k, %v scale 0.5 : (tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>) -> tensor<1x2x9x8xf32>
  %t = nn.transpose %o [0, 2, 1, 3] : (tensor<1x2x9x8xf32>) -> tensor<1x9x2x8xf32>
  %r = nn.reshape %t : (tensor<1x9x2x8xf32>) -> tensor<1x9x16xf32>
  %i = nn.slice %r starts [0, 0, 0] limits [1, 6, 16] strides [1, 1, 1] : (tensor<1x9x16xf32>) -> tensor<1x6x16xf32>
  %p = nn.slice %r starts [0, 6, 0] limits [1, 9, 16] strides [1, 1, 1] : (tensor<1x9x16xf32>) -> tensor<1x3x16xf32>
  return %i, %p : tensor<1x6x16xf32>, tensor<1x3x16xf32>
}

// -----

// The mask and the bias are cut with the keys; who reads across the parts gets them
// joined again.
// CHECK-LABEL: @masked(
// CHECK: %[[M0:.*]] = nn.slice %{{.*}} starts [0, 0] limits [1, 6]
// CHECK: %[[B0:.*]] = nn.slice %{{.*}} starts [0, 0, 0] limits [2, 9, 6]
// CHECK: nn.attention %{{.*}}, %{{.*}}, %{{.*}} key_padding %[[M0]] bias %[[B0]]
// CHECK: %[[M1:.*]] = nn.slice %{{.*}} starts [0, 6] limits [1, 9]
// CHECK: %[[B1:.*]] = nn.slice %{{.*}} starts [0, 0, 6] limits [2, 9, 9]
// CHECK: nn.attention %{{.*}}, %{{.*}}, %{{.*}} key_padding %[[M1]] bias %[[B1]]
// CHECK: %[[O:.*]], %{{.*}} = nn.merge_attention
// CHECK: return %[[O]]
func.func @masked(%q: tensor<1x2x9x8xf32>, %ik: tensor<1x2x6x8xf32>, %tk: tensor<1x2x3x8xf32>,
                  %m: tensor<1x9xi1>, %b: tensor<2x9x9xf32>) -> tensor<1x2x9x8xf32> {
  %k = nn.concat %ik, %tk dim 2 : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
  %o = nn.attention %q, %k, %k key_padding %m bias %b scale 0.5 : (tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x9xi1>, tensor<2x9x9xf32>) -> tensor<1x2x9x8xf32>
  return %o : tensor<1x2x9x8xf32>
}

// -----

// Positions are those of the whole.
// CHECK-LABEL: @causal(
// CHECK: nn.concat
// CHECK: nn.attention
// CHECK-NOT: nn.merge_attention
func.func @causal(%q: tensor<1x2x9x8xf32>, %ik: tensor<1x2x6x8xf32>, %tk: tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32> {
  %k = nn.concat %ik, %tk dim 2 : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
  %o = nn.attention %q, %k, %k scale 0.5 {causal} : (tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>) -> tensor<1x2x9x8xf32>
  return %o : tensor<1x2x9x8xf32>
}

// -----

// The indices of weights are cut with the queries and the keys, so each part drops what the whole does.
// CHECK-LABEL: @dropped(
// CHECK: %[[R:.*]] = nn.slice %{{.*}} starts [0, 0, 0] limits [1, 2, 6]
// CHECK: %[[K0:.*]] = nn.slice %{{.*}} starts [0] limits [6]
// CHECK: nn.attention %{{.*}} drop_at %[[R]], %[[K0]] seed %[[S:.*]] step %[[S]] scale 5.000000e-01 {dropout = 2.500000e-01 : f64, stream = 1 : i64}
// CHECK: %[[K1:.*]] = nn.slice %{{.*}} starts [6] limits [9]
// CHECK: nn.attention %{{.*}} drop_at %{{.*}}, %[[K1]] seed %[[S]] step %[[S]]
func.func @dropped(%iq: tensor<1x2x6x8xf32>, %tq: tensor<1x2x3x8xf32>, %rows: tensor<1x2x9xi64>, %keys: tensor<9xi64>, %s: tensor<i64>) -> (tensor<1x6x16xf32>, tensor<1x3x16xf32>) {
  %q = nn.concat %iq, %tq dim 2 : (tensor<1x2x6x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x9x8xf32>
  %o = nn.attention %q, %q, %q drop_at %rows, %keys seed %s step %s scale 0.5 {dropout = 0.25 : f64, stream = 1 : i64} : (tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9xi64>, tensor<9xi64>, tensor<i64>, tensor<i64>) -> tensor<1x2x9x8xf32>
  %t = nn.transpose %o [0, 2, 1, 3] : (tensor<1x2x9x8xf32>) -> tensor<1x9x2x8xf32>
  %r = nn.reshape %t : (tensor<1x9x2x8xf32>) -> tensor<1x9x16xf32>
  %i = nn.slice %r starts [0, 0, 0] limits [1, 6, 16] strides [1, 1, 1] : (tensor<1x9x16xf32>) -> tensor<1x6x16xf32>
  %p = nn.slice %r starts [0, 6, 0] limits [1, 9, 16] strides [1, 1, 1] : (tensor<1x9x16xf32>) -> tensor<1x3x16xf32>
  return %i, %p : tensor<1x6x16xf32>, tensor<1x3x16xf32>
}
