#include "runtime/timer.h"

namespace vthr {

template class TimerHeapT<RealAtomics>;  // the product's; the model checker makes another

}  // namespace vthr
