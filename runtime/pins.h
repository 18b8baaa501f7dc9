// sysmon's side of the pin records (inspect.h has the other).
#pragma once

namespace vthr {

struct PinRecord;
PinRecord* pin_take();         // nullptr when all are in use: counted as dropped
void pin_post(PinRecord* r);   // to the diagnostics thread
void pins_after_fork();

}  // namespace vthr
