// Entries of the undo log and of the journal: a slot's number, the epoch, and the slot's words, before a batch or after it.
// They are striped, so that neighbouring threads of a GPU fill whole lines (layout.cuh).
#pragma once
#include "base/hash.cuh"
#include "base/layout.cuh"

template <class Slot>
struct Entry {
    u64 slot, epoch;
    u64 words[sizeof(Slot) / 8];  // of the slot
};

template <class Slot>
GPKVS_DEVICE u64 entry_digest(u64 entry, const Entry<Slot>& words) {
    u64 digest = mix64(entry + 1);
    for (u32 w = 0; w < sizeof(words) / 8; w++) digest = mix64(digest ^ ((const u64*)&words)[w]);
    return digest;
}

// Stores an entry, and returns its digest.
template <class Slot>
GPKVS_DEVICE u64 log_entry(u64* log, u64 number, u64 at, u64 epoch, const Slot& slot) {
    Entry<Slot> entry;
    entry.slot = at;
    entry.epoch = epoch;
    for (u32 w = 0; w < sizeof(Slot) / 8; w++) entry.words[w] = ((const u64*)&slot)[w];
    for (u32 w = 0; w < sizeof(entry) / 8; w++) pm_store(log + entry_word_at<Slot>(number, w), ((const u64*)&entry)[w]);
    return entry_digest(number, entry);
}

// Stores the entry of the changed slot i, with the words that a slot has, and its digest.
template <class Slot, class Args>
GPKVS_DEVICE void store_entry(const Args& a, u64 i, const Slot& slot) {
    a.digest[i] = log_entry(a.log, a.first + i, a.changed_slot[i], a.epoch, slot);
}

template <class Slot>
GPKVS_DEVICE Entry<Slot> load_entry(const u64* log, u64 number) {
    Entry<Slot> entry;
    for (u32 w = 0; w < sizeof(entry) / 8; w++) ((u64*)&entry)[w] = log[entry_word_at<Slot>(number, w)];
    return entry;
}

template <class Slot>
GPKVS_DEVICE void store_slot(Slot* index, u64 slot, const u64* words) {
    for (u32 w = 0; w < sizeof(Slot) / 8; w += 2) pm_store_pair((u64*)&index[slot] + w, words + w);
}

// Kernels over changed slots read each one's.
template <class Slot, class Args>
GPKVS_DEVICE void slot_soon(const Args& a, u64 i) {
    prefetch((const Slot*)a.index + a.changed_slot[i]);
}
