// RUN: sharding-opt %s --fold-encoder="stage=encoder mode=sp ring=ring ulysses=ulysses" | FileCheck %s --check-prefixes=CHECK,SP
// RUN: sharding-opt %s --fold-encoder="stage=encoder mode=replica" | FileCheck %s --check-prefixes=CHECK,REPLICA
// RUN: sharding-opt %s --fold-encoder="stage=encoder mode=batch ring=ring ulysses=ulysses" | FileCheck %s --check-prefixes=CHECK,BATCH
// RUN: sharding-opt %s --fold-encoder="stage=encoder mode=none tensor=tp" | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: sharding-opt %s --pass-pipeline='builtin.module(fold-encoder{stage=encoder mode=auto ring=ring ulysses=ulysses tensor=tp},report-decisions)' -o /dev/null 2>&1 | FileCheck %s --check-prefix=AUTO
// RUN: not sharding-opt %s --fold-encoder="stage=encoder mode=ring ring=up" 2>&1 | FileCheck %s --check-prefix=AXIS
// RUN: not sharding-opt %s --fold-encoder="stage=encoder mode=sp ring=tp ulysses=tp" 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not sharding-opt %s --fold-encoder="stage=encoder mode=sp" 2>&1 | FileCheck %s --check-prefix=NEEDS
// RUN: not sharding-opt %s --fold-encoder="stage=encoder mode=up" 2>&1 | FileCheck %s --check-prefix=MODE
// RUN: not sharding-opt %s --fold-encoder="stage=text mode=replica" 2>&1 | FileCheck %s --check-prefix=STAGE
// RUN: sharding-opt %s --declare-mesh="roles=ring=ring,ulysses=ulysses" --fold-encoder="stage=encoder mode=sp ring=auto ulysses=auto" | FileCheck %s --check-prefixes=CHECK,SP
// RUN: sharding-opt %s --declare-mesh="roles=tensor=tp" --fold-encoder="stage=encoder mode=none tensor=auto" | FileCheck %s --check-prefixes=CHECK,NONE
// RUN: not sharding-opt %s --fold-encoder="stage=encoder mode=sp ring=auto" 2>&1 | FileCheck %s --check-prefix=CHOSEN

// CHOSEN: error: ring=auto: expected an axis, or choose-context-parallel before
// NEEDS: error: fold mode 'sp' for stage 'encoder' needs the axis that context-parallel names: expected one for ulysses or ring, got none
// MODE: for the --mode option: expected sp, ulysses, ring, replica, batch, auto or none, got 'up'
// STAGE: error: fold names stage 'text': expected one of encoder, denoiser

// AXIS: error: 'dist.mesh' op has no axis "up" to fold over
// TWICE: error: 'dist.mesh' op axis "tp" is both ring and ulysses of stage 'encoder': expected two axes

// A mesh without a device: only bytes count, so the batch is split, or nothing.
// AUTO: remark: [fold-encoder] {{.*}} fold=auto takes
// AUTO-DAG: none (tensor parallel) (seconds = {{.*}}, bytes = {{.*}}, memory_bytes =
// AUTO-DAG: fold sp over {"ring", "ulysses"}
// AUTO-DAG: fold ulysses over {"ulysses"}
// AUTO-DAG: fold ring over {"ring"}
// AUTO-DAG: fold replica over {"tp", "ring", "ulysses"}
// AUTO-DAG: batch over {"ring", "ulysses"}

// The encoder's MLP is sharded over the group; the denoiser's is left alone. A
// batch that is split is whole again where the denoiser reads it.

// CHECK-LABEL: func.func @main
// BATCH-SAME: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"ring", "ulysses"}, {}]>, nn.input = "encoder.x"}
// SP-SAME: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"ring", "ulysses"}, {}]>, nn.parameter = "encoder.up"}
// SP-SAME: tensor<8x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"ring", "ulysses"}]>, nn.parameter = "encoder.down"}
// NONE-SAME: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "encoder.up"}
// REPLICA-SAME: tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp", "ring", "ulysses"}, {}]>, nn.parameter = "encoder.up"}
// BATCH-SAME: tensor<16x8xf32> {nn.parameter = "encoder.up"}
// CHECK-SAME: tensor<16x8xf32> {nn.parameter = "denoiser.up"}
// BATCH: nn.linear {{.*}}nn.stage = "encoder"{{.*}}tensor<8x16xf32>
// BATCH-NEXT: dist.constrain %{{.*}} <@mesh, [{}, {}]>
dist.mesh @mesh = <["tp"=2, "ring"=2, "ulysses"=2]>
func.func @main(%x: tensor<4x8xf32> {nn.input = "encoder.x"},
    %eu: tensor<16x8xf32> {nn.parameter = "encoder.up"}, %ed: tensor<8x16xf32> {nn.parameter = "encoder.down"},
    %du: tensor<16x8xf32> {nn.parameter = "denoiser.up"}, %dd: tensor<8x16xf32> {nn.parameter = "denoiser.down"})
    -> (tensor<4x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %eu {nn.stage = "encoder"} : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.relu %0 {nn.stage = "encoder"} : tensor<4x16xf32>
  %2 = nn.linear %1, %ed {nn.stage = "encoder"} : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  %3 = nn.linear %2, %du {nn.stage = "denoiser"} : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %4 = nn.relu %3 {nn.stage = "denoiser"} : tensor<4x16xf32>
  %5 = nn.linear %4, %dd {nn.stage = "denoiser"} : (tensor<4x16xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  return %5 : tensor<4x8xf32>
}
