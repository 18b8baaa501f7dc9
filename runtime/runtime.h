// What interpose may use of the runtime.
#pragma once
#include "runtime/admission.h"
#include "runtime/base.h"
#include "runtime/brief.h"
#include "runtime/fiber.h"
#include "runtime/kernel_thread.h"
#include "runtime/op.h"
#include "runtime/options.h"
#include "runtime/parking.h"
#include "runtime/sched.h"
#include "runtime/sys.h"
#include "runtime/tls.h"
#include "runtime/wait.h"
