/*===- DeviceKernel.h - kernels with code of their own ----------*- C -*-===*\
|*                                                                        *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions. *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                 *|
|*                                                                        *|
\*===--------------------------------------------------------------------===*/

#ifndef MESHWRIGHT_C_DEVICEKERNEL_H
#define MESHWRIGHT_C_DEVICEKERNEL_H

#include <stdint.h>

/* A kernel of a device with code of its own: `mw_rt_run_kernel` is passed the address of this record
 * in place of a function. The program's description has the code of that name. If `checks_indices`
 * is set, the kernel's last parameter is the address of a fault word. */
typedef struct mw_rt_device_kernel {
  const char *name;
  int64_t checks_indices;
} mw_rt_device_kernel;

#endif /* MESHWRIGHT_C_DEVICEKERNEL_H */
