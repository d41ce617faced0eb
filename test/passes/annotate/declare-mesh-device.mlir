// The device that plans assume: without a calibration, by a file, and by the calibration of this machine.
// RUN: rm -rf %t && split-file %s %t && mkdir -p %t/config/meshwright
// RUN: env -u MESHWRIGHT_DEVICE XDG_CONFIG_HOME=%t/config sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=auto" | FileCheck %s --check-prefix=USUAL
// RUN: env -u MESHWRIGHT_DEVICE XDG_CONFIG_HOME=%t/config sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=auto target=gpu:sm_90a" | FileCheck %s --check-prefix=USUAL
// RUN: env MESHWRIGHT_DEVICE=a100 XDG_CONFIG_HOME=%t/config sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=auto" | FileCheck %s --check-prefix=VARIABLE
// RUN: sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=%t/sheet.json" | FileCheck %s --check-prefix=FILE
// RUN: sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=%t/sheet.json" | sharding-opt --declare-mesh="mesh=tp=2" | FileCheck %s --check-prefix=FILE
// RUN: not sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=%t/none.json" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: cp %t/sheet.json %t/config/meshwright/device.json
// RUN: env -u MESHWRIGHT_DEVICE XDG_CONFIG_HOME=%t/config sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=auto" | FileCheck %s --check-prefix=HERE
// RUN: env -u MESHWRIGHT_DEVICE XDG_CONFIG_HOME=%t/config sharding-opt %t/model.mlir --declare-mesh="mesh=tp=2 device=auto target=cpu:x86-64-v3" | FileCheck %s --check-prefix=PROCESSOR

// USUAL: dist.mesh @mesh = <["tp"=2], device = "h100">
// PROCESSOR: dist.mesh @mesh = <["tp"=2], device = "cpu">
// VARIABLE: dist.mesh @mesh = <["tp"=2], device = "a100">
// FILE: dist.mesh @mesh = <["tp"=2], device = "name=sheet flops_f32=2e+12 memory_bandwidth=1e+11 launch=2e-06 overlap=1 product_f32=1:1e+10;64:1.5e+12 all_gather=4096:1e+09">
// HERE: dist.mesh @mesh = <["tp"=2], device = "name=device flops_f32=2e+12 {{.*}}">
// NONE: error: device file '{{.*}}none.json': No such file or directory

//--- model.mlir
func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<4xf32> {nn.output = "y"}) {
  return %x : tensor<4xf32>
}

//--- sheet.json
{
  "format": "meshwright device", "version": 1,
  "device": {"flops_f32": 2e12, "memory_bandwidth": 1e11, "launch": 2e-6,
             "product_f32": [[1, 1e10], [64, 1.5e12]], "all_gather": [[4096, 1e9]]}
}
