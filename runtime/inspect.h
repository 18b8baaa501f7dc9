// What diag may see of the runtime: counters, fibers, workers, and the pins that sysmon caught.
#pragma once
#include "runtime/admission.h"
#include "runtime/base.h"
#include "runtime/fiber.h"
#include "runtime/lock.h"
#include "runtime/options.h"
#include "runtime/pins.h"
#include "runtime/sched.h"
#include "runtime/sys.h"
#include "runtime/tls.h"
#include "runtime/wait.h"

namespace vthr {}  // namespace vthr
