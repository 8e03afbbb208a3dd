/* Gives the constants that are behind this library in its file. apart.py writes them there, and
   defines in front of this text what it leaves open: FUNCTION, COUNT, SIZE, END, SHAPES, CONSTANTS. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

typedef struct {
  uint64_t offset; /* of its bytes, behind the library */
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
} Constant;

SHAPES
static const Constant constants[] = {CONSTANTS};
static const unsigned char end[] = END;
static DLManagedTensor tensors[COUNT];
static TVMFFIObjectHandle given[COUNT];
static char* mapped;

/* Maps the constants as the library is loaded: later its file may be another one. */
__attribute__((constructor)) static void map_constants(void) {
  Dl_info here;
  struct stat status;
  unsigned char found[sizeof(end) + 8];
  uint64_t start;
  int file = dladdr((const void*)&constants, &here) ? open(here.dli_fname, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  if (!fstat(file, &status) && status.st_size > (off_t)sizeof(found) &&
      pread(file, found, sizeof(found), status.st_size - sizeof(found)) == sizeof(found) &&
      !memcmp(found, end, sizeof(end))) {
    memcpy(&start, found + sizeof(end), 8);
    if (start + SIZE + sizeof(found) == (uint64_t)status.st_size) {
      void* at = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, (off_t)start);
      if (at != MAP_FAILED) mapped = (char*)at;
    }
  }
  close(file);
}

static void keep(DLManagedTensor* tensor) { (void)tensor; /* it lasts as long as the process */ }

/* The tensor of constant args[0]; each is made once, and given again. */
#ifdef __cplusplus
extern "C"
#endif
__attribute__((visibility("default")))
int FUNCTION(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVMFFIObjectHandle made, none = NULL;
  int64_t i = count == 1 ? args[0].v_int64 : -1;
  (void)self;
  if (mapped == NULL || i < 0 || i >= COUNT) {
    TVMFFIErrorSetRaisedFromCStr(
        "RuntimeError",
        "the constants behind the library's code are missing or those of another one; copy the "
        "whole file, and do not strip it");
    return -1;
  }
  made = __atomic_load_n(&given[i], __ATOMIC_ACQUIRE);
  if (made == NULL) {
    const Constant* c = &constants[i];
    DLTensor tensor = {mapped + c->offset, {kDLCPU, 0}, c->ndim, c->dtype, c->shape, c->strides, 0};
    tensors[i].dl_tensor = tensor;
    tensors[i].deleter = keep;
    if (TVMFFITensorFromDLPack(&tensors[i], 0, 0, &made)) return -1;
    if (!__atomic_compare_exchange_n(&given[i], &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      TVMFFIObjectDecRef(made); /* another thread was quicker */
      made = none;
    }
  }
  TVMFFIObjectIncRef(made);
  result->type_index = kTVMFFITensor;
  result->zero_padding = 0;
  result->v_obj = (TVMFFIObject*)made;
  return 0;
}
