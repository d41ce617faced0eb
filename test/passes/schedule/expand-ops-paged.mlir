// RUN: sharding-opt %s --expand-ops="target=cpu:x86-64-v4" | FileCheck %s
// RUN: sharding-opt %s --expand-ops="target=gpu:sm_90" | FileCheck %s --check-prefix=GPU

// A processor has a kernel, which reads checked ids. Few heads and tokens: the keys are cut into parts.
// CHECK-LABEL: func.func @decode
// CHECK:         %[[IDS:.*]] = nn.iota dim 0 : tensor<8xi64>
// CHECK:         %[[CHECKED:.*]] = nn.gather %[[IDS]]
// CHECK:         %[[TABLES:.*]] = nn.reshape %[[CHECKED]]
// CHECK:         %[[PARTS:.*]], %[[LSES:.*]] = nn.paged_attention %{{.*}}, %{{.*}}, %{{.*}} tables %[[TABLES]]
// CHECK-SAME:      parts = 4
// CHECK-NEXT:    %{{.*}} = nn.merge_parts %[[PARTS]], %[[LSES]] sinks
// On a GPU blocks of threads share the keys within one kernel, which has the sinks, too.
// GPU-LABEL:   func.func @decode
// GPU:         %[[CHECKED:.*]] = nn.gather
// GPU:         %[[TABLES:.*]] = nn.reshape %[[CHECKED]]
// GPU-NEXT:    %[[OUT:.*]] = nn.paged_attention %{{.*}}, %{{.*}}, %{{.*}} tables %[[TABLES]] {{.*}} sinks
// GPU-NEXT:    return %[[OUT]]
func.func @decode(%q: tensor<1x2x4x16xf32>, %k: tensor<1x8x512x2x16xf32>, %v: tensor<1x8x512x2x16xf32>,
                  %tables: tensor<1x2x2xi64>, %starts: tensor<1x3xi64>, %lengths: tensor<1x2xi64>, %sinks: tensor<4xf32>) -> tensor<1x2x4x16xf32> {
  %0 = nn.paged_attention %q, %k, %v tables %tables starts %starts lengths %lengths sinks %sinks scale 0.25
    : (tensor<1x2x4x16xf32>, tensor<1x8x512x2x16xf32>, tensor<1x8x512x2x16xf32>, tensor<1x2x2xi64>, tensor<1x3xi64>, tensor<1x2xi64>, tensor<4xf32>) -> tensor<1x2x4x16xf32>
  return %0 : tensor<1x2x4x16xf32>
}

// Short caches have one part. Values are the first columns of the keys.
// CHECK-LABEL: func.func @latent
// CHECK:         nn.paged_attention %{{.*}}, %[[ROWS:.*]], %[[ROWS]] tables
// CHECK-NOT:     nn.merge_parts
// GPU-LABEL:   func.func @latent
// GPU:           nn.paged_attention %{{.*}}, %[[ROWS:.*]], %[[ROWS]] tables
func.func @latent(%q: tensor<1x2x4x16xf32>, %k: tensor<1x8x4x1x16xf32>, %tables: tensor<1x2x3xi64>, %starts: tensor<1x3xi64>,
                  %lengths: tensor<1x2xi64>) -> (tensor<1x2x4x12xf32>, tensor<1x2x4xf32>) {
  %0:2 = nn.paged_attention %q, %k, %k tables %tables starts %starts lengths %lengths scale 0.25
    : (tensor<1x2x4x16xf32>, tensor<1x8x4x1x16xf32>, tensor<1x8x4x1x16xf32>, tensor<1x2x3xi64>, tensor<1x3xi64>, tensor<1x2xi64>) -> (tensor<1x2x4x12xf32>, tensor<1x2x4xf32>)
  return %0#0, %0#1 : tensor<1x2x4x12xf32>, tensor<1x2x4xf32>
}
