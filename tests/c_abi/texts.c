/* Texts: statuses, build information and plan descriptions, in buffers of every size. */
#include "harness.h"

static void status_names(void) {
  CHECK(strcmp(qpi_status_name(QPI_SUCCESS), "QPI_SUCCESS") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_VALUE), "QPI_ERROR_VALUE") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_TYPE), "QPI_ERROR_TYPE") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_OVERFLOW), "QPI_ERROR_OVERFLOW") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_POINTER), "QPI_ERROR_POINTER") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_NO_DEVICE), "QPI_ERROR_NO_DEVICE") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_CUDA), "QPI_ERROR_CUDA") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_MEMORY), "QPI_ERROR_MEMORY") == 0);
  CHECK(strcmp(qpi_status_name(QPI_ERROR_UNSUPPORTED), "QPI_ERROR_UNSUPPORTED") == 0);
  CHECK(qpi_status_name((qpi_status)77) != NULL);
}

typedef qpi_status (*text_call)(const fixture* f, char* text, size_t capacity, size_t* length);

static qpi_status build_info(const fixture* f, char* text, size_t capacity, size_t* length) {
  (void)f;
  return qpi_build_info(text, capacity, length);
}

static qpi_status describe(const fixture* f, char* text, size_t capacity, size_t* length) {
  return qpi_plan_describe(f->plan, 1000, text, capacity, length);
}

static void every_capacity(const fixture* f, text_call call) {
  size_t length = 0, again = 0, capacity;
  char *whole, *part;
  OK(call(f, NULL, 0, &length));
  CHECK(length > 0);
  whole = (char*)malloc(length + 1);
  part = (char*)malloc(length + 8);
  if (!whole || !part) abort();
  OK(call(f, whole, length + 1, &again));
  CHECK(again == length && strlen(whole) == length);
  OK(call(f, whole, length + 1, NULL));
  for (capacity = 0; capacity <= length + 1; ++capacity) {
    memset(part, 0x5A, length + 8);
    again = 0;
    OK(call(f, part, capacity, &again));
    CHECK(again == length);
    CHECK(part[capacity] == 0x5A); /* nothing behind the end */
    if (capacity > 0) CHECK(strlen(part) == capacity - 1 && memcmp(part, whole, capacity - 1) == 0);
  }
  FAILS(NULL, QPI_ERROR_POINTER, "text", call(f, NULL, 1, &again));
  free(part);
  free(whole);
}

int main(void) {
  fixture f;
  char text[8192];
  size_t length;
  fixture_open(&f);
  status_names();
  every_capacity(&f, build_info);
  every_capacity(&f, describe);
  OK(qpi_build_info(text, sizeof text, &length));
  CHECK(length < sizeof text && text[0] == '{' && text[length - 1] == '}');
  puts(text);
  fixture_close(&f);
  return report();
}
