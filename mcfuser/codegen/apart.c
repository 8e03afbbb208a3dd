/* Gives the constants that are behind this library in its file. apart.py writes them there, and
   defines in front of this text what it leaves open: FUNCTION, COPIED, COUNT, SIZE, END, SHAPES,
   CONSTANTS. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#if COPIED
#define DEVICES 16 /* whose copies are kept */
#else
#define DEVICES 1
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
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
static TVMFFIObjectHandle given[DEVICES][COUNT];
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

static int refuse(const char* why) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", why);
  return -1;
}

/* A tensor over the bytes of constant i. */
static int viewed(int64_t i, TVMFFIObjectHandle* made) {
  const Constant* c = &constants[i];
  DLTensor tensor = {mapped + c->offset, {kDLCPU, 0}, c->ndim, c->dtype, c->shape, c->strides, 0};
  tensors[i].dl_tensor = tensor;
  tensors[i].deleter = keep;
  return TVMFFITensorFromDLPack(&tensors[i], 0, 0, made);
}

#if COPIED
/* Puts a copy on a device in the place of a tensor. */
static int copied(DLDevice device, TVMFFIObjectHandle* tensor) {
  const TVMFFIByteArray name = {"vm.builtin.to_device", sizeof("vm.builtin.to_device") - 1};
  TVMFFIObjectHandle function, host = *tensor;
  TVMFFIAny args[3], result;
  int failed;
  if (TVMFFIFunctionGetGlobal(&name, &function)) return -1;
  memset(args, 0, sizeof(args));
  memset(&result, 0, sizeof(result));
  args[0].type_index = kTVMFFITensor;
  args[0].v_obj = (TVMFFIObject*)host;
  args[1].type_index = args[2].type_index = kTVMFFIInt;
  args[1].v_int64 = device.device_type;
  args[2].v_int64 = device.device_id;
  failed = function == NULL ? refuse("TVM has no vm.builtin.to_device")
                            : TVMFFIFunctionCall(function, args, 3, &result);
  if (function != NULL) TVMFFIObjectDecRef(function);
  TVMFFIObjectDecRef(host);
  *tensor = failed ? NULL : (TVMFFIObjectHandle)result.v_obj;
  return failed;
}

static int leaving; /* the process ends */

static void leave(void) { leaving = 1; }

/* What is registered here runs before the destructors where the process ends, and after those of the
   library where only that is unloaded. */
__attribute__((constructor)) static void expect_the_end(void) { atexit(leave); }

/* Frees the copies as the library is unloaded. As the process ends, a device frees all memory that it
   has, and its driver may be gone. */
__attribute__((destructor)) static void forget(void) {
  if (leaving) return;
  for (int device = 0; device < DEVICES; device++)
    for (int i = 0; i < COUNT; i++)
      if (given[device][i] != NULL) TVMFFIObjectDecRef(given[device][i]);
}
#endif

/* The device of the tensor that is an argument. */
static DLDevice of(const TVMFFIAny* tensor) {
  const char* at = (const char*)tensor->v_ptr;
  if (tensor->type_index == kTVMFFITensor) at += sizeof(TVMFFIObject);
  return ((const DLTensor*)at)->device;
}

/* The tensor of constant args[0], on the device of args[1] if that is given; each is made once for a
   device, and given again. */
#ifdef __cplusplus
extern "C"
#endif
__attribute__((visibility("default")))
int FUNCTION(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVMFFIObjectHandle made, none = NULL, *place;
  int64_t i = count == 1 + COPIED ? args[0].v_int64 : -1;
  DLDevice device = {kDLCPU, 0};
  (void)self;
  if (mapped == NULL || i < 0 || i >= COUNT)
    return refuse(
        "the constants behind the library's code are missing or those of another one; copy the "
        "whole file, and do not strip it");
  if (COPIED) device = of(&args[1]);
  if (device.device_id < 0 || device.device_id >= DEVICES)
    return refuse("the module's constants are copied to the first 16 devices only");
  place = &given[device.device_id][i];
  made = __atomic_load_n(place, __ATOMIC_ACQUIRE);
  if (made == NULL) {
    if (viewed(i, &made)) return -1;
#if COPIED
    if (copied(device, &made)) return -1;
#endif
    if (!__atomic_compare_exchange_n(place, &none, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
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
