/* The counts that workers share: a limit is one of the whole process, whoever holds. */
#include "proxy/share.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void a_limit_is_kept_and_given_back(void **state)
{
    struct share *a = share_enter("one", 3, 2), *b = share_enter("one", 3, 2);
    assert_non_null(a);
    assert_ptr_equal(a, b);
    assert_null(share_enter("one", 3, 2));
    struct share *other = share_enter("two", 3, 2);
    assert_non_null(other);
    assert_ptr_not_equal(other, a);
    share_leave(b);
    assert_ptr_equal(share_enter("one", 3, 2), a);
    share_leave(a);
    share_leave(a);
    share_leave(other);
    share_leave(NULL);
    struct share *fresh = share_enter("one", 3, 1);
    assert_int_equal(fresh->holders, 1);
    assert_int_equal(atomic_load(&fresh->in_flight), 0);
    share_leave(fresh);
}

static void keys_differ_in_every_byte(void **state)
{
    uint8_t key[SHARE_KEY_MAX] = {0};
    struct share *all[SHARE_KEY_MAX];
    for (int i = 0; i < SHARE_KEY_MAX; i++) {
        memset(key, 0, sizeof key);
        key[i] = 1;
        all[i] = share_enter(key, sizeof key, 1);
        assert_non_null(all[i]);
    }
    for (int i = 0; i < SHARE_KEY_MAX; i++)
        share_leave(all[i]);
}

enum { THREADS = 4, ROUNDS = 20000, LIMIT = 3 };
static atomic_int inside, refused;

static void *hammer(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct share *s = share_enter("hot", 3, LIMIT);
        if (s == NULL) {
            atomic_fetch_add(&refused, 1);
            continue;
        }
        if (atomic_fetch_add(&inside, 1) >= LIMIT)
            return (void *)1;
        atomic_fetch_add(&s->in_flight, 1);
        atomic_fetch_sub(&s->in_flight, 1);
        atomic_fetch_sub(&inside, 1);
        share_leave(s);
    }
    return NULL;
}

static void threads_together_stay_below_the_limit(void **state)
{
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, hammer, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        void *broken;
        pthread_join(t[i], &broken);
        assert_null(broken);
    }
    struct share *s = share_enter("hot", 3, 1); /* nobody is left */
    assert_non_null(s);
    share_leave(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_limit_is_kept_and_given_back),
                                       cmocka_unit_test(keys_differ_in_every_byte),
                                       cmocka_unit_test(threads_together_stay_below_the_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
